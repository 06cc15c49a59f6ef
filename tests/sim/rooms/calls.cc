#include "weft/tests/sim/rooms/calls.h"

#include <utility>

#include "absl/strings/str_cat.h"
#include "weft/base/status.h"
#include "weft/proto/weft.pb.h"
#include "weft/rpc/transport/status_wire.h"
#include "weft/tests/sim/world/world.h"

namespace weft::sim {

using rref_internal::Acceptance;
using rref_internal::Delivery;

namespace {

constexpr uint32_t kMaxDepth = 3;

// Returns the error that the caller of a step's message gets instead of an answer.
absl::Status failure_of(Outcome outcome, Calls::Where where, TimePoint deadline) {
  if (outcome == Outcome::kValue) return absl::OkStatus();
  if (outcome == Outcome::kRan) return with_ran(absl::DataLossError("result lost"), Ran::kYes);
  const Ran ran = outcome == Outcome::kNotRun ? Ran::kNo : Ran::kMaybe;
  if (where == Calls::Where::kPeerGone) return with_ran(absl::UnavailableError("is gone"), ran);
  const bool no_room = ran == Ran::kNo && where == Calls::Where::kHere && deadline == kNever;
  return with_ran(
      no_room ? absl::ResourceExhaustedError("no room") : absl::DeadlineExceededError("late"), ran);
}

uint64_t budget_to_deadline(uint64_t budget_us) { return budget_us * 1000; }

}  // namespace

Calls::Calls(Worker& worker) : worker_(worker), world_(worker.world) {}

// ---- the caller

// Turns the references into forks and records the send of the context. On failure nothing has
// happened.
bool Calls::pack(const CallPlan& plan, CallBody& body, HandlePtr& created) {
  References& references = worker_.references;
  if (plan.kind == CallKind::kCreate) {
    created = references.create(plan.to, &body.rref, &body.fork);
    if (created == nullptr) return false;
  } else if (plan.target != nullptr) {
    body.rref = plan.target->handle.rref;
    body.key = references.core().key_of(plan.target->handle);
  }
  bool ok = true;
  for (const HandlePtr& argument : plan.arguments) {
    std::optional<rref_internal::Reference> reference = references.carry(argument, plan.to);
    if (!reference) {
      ok = false;
      break;
    }
    body.references.push_back(*std::move(reference));
  }
  if (ok && plan.context.valid()) {
    body.context = plan.context;
    std::vector<int>* values = nullptr;
    if (plan.parent != 0) values = &incoming_.at(plan.parent).values;
    ok = worker_.passes.record_send(plan.context, plan.to, values, &body.metadata, &body.transfer);
  }
  if (ok) return true;
  for (const rref_internal::Reference& made : body.references) references.carrier_ended(made);
  return false;
}

void Calls::start(CallPlan plan) {
  auto body = std::make_shared<CallBody>();
  body->kind = plan.kind;
  body->step = plan.step;
  body->ledger = world_.checker.calls.open(worker_.slot, plan.to, plan.operation);
  Outgoing out;
  const uint64_t call = next_call_++;
  if (plan.parent != 0) {
    Incoming& parent = incoming_.at(plan.parent);
    body->depth = parent.body->depth + 1;
    parent.nested.emplace_back(plan.to, call);
    ++parent.open;
  }
  const bool packed = pack(plan, *body, out.created);
  out.body = body;
  out.plan = std::move(plan);
  if (!packed) {
    out.body->references.clear();  // taken back already
    return resolve(call, std::move(out), Outcome::kNotRun, Where::kHere);
  }
  if (out.created != nullptr) worker_.references.keep(out.created);
  Frame frame;
  if (out.plan.parent != 0) frame.header.flags |= kFlagNested;
  if (out.plan.kind == CallKind::kCreate) frame.header.flags |= kFlagObject;
  frame.payloads.push_back(sim::pack(body, out.plan.bytes));
  const WorkerId to = out.plan.to;
  const TimePoint deadline = out.plan.deadline;
  const bool waited_for = out.plan.waited_for;
  outgoing_.emplace(call, std::move(out));
  switch (worker_.sessions.call(call, to, std::move(frame), deadline, waited_for)) {
    case Sessions::Sent::kYes:
      return;
    case Sessions::Sent::kQueueFull:
      return on_failed(call, Ran::kNo, Where::kHere);
    case Sessions::Sent::kGone:
      return on_failed(call, Ran::kNo, Where::kPeerGone);
  }
}

void Calls::cancel_one() {
  if (outgoing_.empty()) return;
  auto it =
      std::next(outgoing_.begin(), static_cast<ptrdiff_t>(world_.dice.below(outgoing_.size())));
  if (it->second.plan.ticket != 0) return;  // the program does not cancel steps' messages
  bool sent = false;
  const uint64_t call = it->first;
  if (!worker_.sessions.cancel(it->second.plan.to, call, &sent)) return;
  on_failed(call, sent ? Ran::kMaybe : Ran::kNo, Where::kHere);
}

void Calls::on_failed(uint64_t call, Ran ran, Where where) {
  auto found = outgoing_.extract(call);
  if (found.empty()) return world_.violate("calls", "a call that is not open has failed");
  resolve(call, std::move(found.mapped()), ran == Ran::kNo ? Outcome::kNotRun : Outcome::kMaybeRun,
          where);
}

void Calls::on_reply(WorkerId from, const Frame& frame, bool pending) {
  std::shared_ptr<ReplyBody> body = unpack<ReplyBody>(frame);
  if (body == nullptr) {  // the session kept only the fact that it ran
    world_.report.count(Effect::kResultsLost);
    wire::Meta meta;
    meta.ParseFromString(frame.meta);
    const absl::Status lost = rpc_internal::decode_status(meta.status());
    if (!absl::IsDataLoss(lost) || ran_of(lost) != Ran::kYes) {
      return world_.violate("session", "a reply without a body does not say that it was lost");
    }
    body =
        std::make_shared<ReplyBody>(world_.checker.calls.lost_result(worker_.slot, frame.header));
    body->ok = false;
    body->ran = Ran::kYes;
    worker_.references.discard(from, body->references);
    body->references.clear();
  }
  if (!pending) {
    worker_.references.discard(from, body->references);
    return;
  }
  auto found = outgoing_.extract(frame.header.call);
  if (found.empty()) return world_.violate("calls", "a reply to a call that is not open");
  Outgoing& out = found.mapped();
  if (body->ledger != out.body->ledger) {
    return world_.violate("calls", "the reply belongs to another call");
  }
  if (!body->ok) {
    const Outcome outcome = body->ran == Ran::kNo    ? Outcome::kNotRun
                            : body->ran == Ran::kYes ? Outcome::kRan
                                                     : Outcome::kMaybeRun;
    return resolve(frame.header.call, std::move(out), outcome, Where::kReply);
  }
  bool ok = true;
  for (HandlePtr& handle : worker_.references.receive(from, body->references, &ok)) {
    worker_.references.keep(std::move(handle));
  }
  if (ok && body->context.valid()) {
    Incoming* parent = out.plan.parent != 0 ? &incoming_.at(out.plan.parent) : nullptr;
    ok = worker_.passes.record_receive(from, body->context, body->metadata, body->transfer,
                                       parent != nullptr ? &parent->values : nullptr);
  }
  out.step = body->step;
  resolve(frame.header.call, std::move(out), ok ? Outcome::kValue : Outcome::kRan, Where::kReply);
}

void Calls::resolve(uint64_t /*call*/, Outgoing out, Outcome outcome, Where where) {
  world_.checker.calls.resolve(out.body->ledger, outcome);
  // Sent messages arrive exactly once, or their receiver is dead. So only a call that never left
  // takes its references back.
  if (outcome == Outcome::kNotRun && where == Where::kHere) {
    for (const rref_internal::Reference& reference : out.body->references) {
      worker_.references.carrier_ended(reference);
    }
  }
  if (out.plan.kind == CallKind::kCreate && outcome != Outcome::kValue && out.created != nullptr) {
    worker_.references.creation_failed(out.created, out.plan.to);
  }
  if (out.plan.parent != 0) nested_done(out.plan.parent);
  if (out.plan.ticket != 0) {
    worker_.steps.on_end(out.plan.ticket, failure_of(outcome, where, out.plan.deadline),
                         out.step.get());
  }
}

void Calls::answer_step(uint64_t number, StepReply reply) {
  auto found = incoming_.extract(number);
  auto body = std::make_shared<ReplyBody>();
  body->step = std::make_shared<StepReply>(std::move(reply));
  answer(found.mapped(), std::move(body), 100);
}

// ---- the callee

void Calls::on_call(WorkerId from, const Frame& frame) {
  const uint64_t number = next_incoming_++;
  Incoming& incoming = incoming_[number];
  incoming.body = unpack<CallBody>(frame);
  incoming.from = from;
  incoming.header = frame.header;
  incoming.cost = frame.cost();
  if (frame.header.budget_us != 0) {
    incoming.deadline =
        world_.schedule.now() +
        Nanoseconds(static_cast<int64_t>(budget_to_deadline(frame.header.budget_us)));
  }
  world_.checker.calls.arrive(incoming.body->ledger, worker_.id);
  incoming.cancelled = worker_.sessions.admitted(from, frame.header.call);
  if (incoming.creates()) {
    if (worker_.references.accept_creation(from, *incoming.body) != Acceptance::kRun) {
      worker_.references.discard(from, incoming.body->references);
      return refuse_unread(incoming), void(incoming_.erase(number));
    }
    auto accepted = std::make_shared<ReplyBody>();
    accepted->ledger = incoming.body->ledger;
    Frame reply;
    reply.header.call = incoming.header.call;
    reply.payloads.push_back(sim::pack(std::move(accepted), 0));
    worker_.sessions.reply(from, std::move(reply));
  }
  if (incoming.body->references.empty()) return find_target(number);
  worker_.references.receive_confirmed(from, incoming.body->references, number);
}

void Calls::refuse_unread(Incoming& incoming) {
  auto body = std::make_shared<ReplyBody>();
  body->ok = false;
  body->ran = Ran::kNo;
  answer(incoming, std::move(body), 0);
}

// Answers with "not executed".
void Calls::refuse(uint64_t number) {
  auto found = incoming_.extract(number);
  if (found.empty()) return;
  Incoming& incoming = found.mapped();
  if (incoming.creates()) {
    take(incoming);
    worker_.references.set_value(incoming.body->rref, false, {});
    return;
  }
  refuse_unread(incoming);
}

void Calls::answer(Incoming& incoming, std::shared_ptr<ReplyBody> body, size_t bytes) {
  take(incoming);
  body->ledger = incoming.body->ledger;
  if (body->ok) {
    world_.checker.calls.keep_result(incoming.from, incoming.header, *body, bytes);
  } else if (body->ran == Ran::kNo) {
    world_.checker.calls.refuse(incoming.body->ledger);
  }
  Frame frame;
  frame.header.call = incoming.header.call;
  if (!body->ok) frame.header.flags |= kFlagError;
  frame.payloads.push_back(sim::pack(std::move(body), bytes));
  worker_.sessions.reply(incoming.from, std::move(frame));
}

void Calls::take(Incoming& incoming) {
  if (std::exchange(incoming.taken, true)) return;
  worker_.sessions.call_taken(incoming.from, incoming.header, incoming.cost);
}

// A call that waits for its object returns its credit, as long as `parking` allows more such calls.
void Calls::park(Incoming& incoming) {
  if (parked_ >= world_.parking) return;
  ++parked_;
  incoming.parked = true;
  take(incoming);
}

void Calls::unpark(Incoming& incoming) {
  if (std::exchange(incoming.parked, false)) --parked_;
}

void Calls::on_confirmed(uint64_t number, bool ok) {
  auto found = incoming_.find(number);
  if (found == incoming_.end()) return;
  if (!ok) return refuse(number);
  found->second.references = worker_.references.take_arrived(number);
  find_target(number);
}

void Calls::find_target(uint64_t number) {
  Incoming& incoming = incoming_.at(number);
  const CallKind kind = incoming.body->kind;
  if (kind != CallKind::kMethod && kind != CallKind::kFetch) return schedule(number);
  const uint64_t ticket = worker_.references.fetch(incoming.from, *incoming.body, number);
  auto found = incoming_.find(number);
  if (found == incoming_.end() || ticket == 0) return;
  found->second.ticket = ticket;
  park(found->second);
  if (found->second.cancelled) worker_.references.forget_target(ticket);
}

void Calls::on_target(uint64_t number, bool ok) {
  auto found = incoming_.find(number);
  if (found == incoming_.end()) return;
  found->second.ticket = 0;
  unpark(found->second);
  if (!ok) return refuse(number);
  schedule(number);
}

void Calls::schedule(uint64_t number) {
  world_.schedule.in(world_.dice.micros(1, 200), EventKind::kRun, worker_.slot, number);
}

void Calls::on_event(const Event& event) {
  auto found = incoming_.find(event.a);
  if (found == incoming_.end()) return;
  if (event.kind == EventKind::kRun) return run(event.a);
  found->second.worked = true;
  finish_if_done(event.a);
}

void Calls::run(uint64_t number) {
  Incoming& incoming = incoming_.at(number);
  take(incoming);
  const bool late = world_.schedule.now() >= incoming.deadline;
  if (!incoming.creates() && (incoming.cancelled || late)) return refuse(number);
  if (incoming.body->context.valid() &&
      !worker_.passes.record_receive(incoming.from, incoming.body->context, incoming.body->metadata,
                                     incoming.body->transfer, &incoming.values)) {
    world_.report.count(Effect::kContextsRefused);
    return refuse(number);
  }
  world_.checker.calls.execute(incoming.body->ledger, worker_.id);
  if (incoming.body->kind == CallKind::kFetch) {
    incoming.worked = true;
    return finish(number);
  }
  if (incoming.body->kind == CallKind::kStep) {
    return worker_.steps.serve(number, incoming.from, *incoming.body->step);
  }
  ++incoming.open;  // until all nested calls are made
  make_nested(number);
  auto found = incoming_.find(number);
  if (found == incoming_.end()) return;
  --found->second.open;
  world_.schedule.in(world_.dice.micros(1, 400), EventKind::kFinish, worker_.slot, number);
}

void Calls::make_nested(uint64_t number) {
  Dice& dice = world_.dice;
  if (incoming_.at(number).body->depth >= kMaxDepth || world_.winding_down) return;
  const size_t count = dice.chance(45) ? 1 + dice.below(2) : 0;
  for (size_t i = 0; i < count; ++i) {
    const Incoming& incoming = incoming_.at(number);
    const std::vector<WorkerId> peers = worker_.sessions.live_peers();
    if (peers.empty()) return;
    CallPlan plan;
    plan.parent = number;
    plan.operation = Operation::kNestedCall;
    plan.deadline = incoming.creates() ? kNever : incoming.deadline;
    plan.waited_for = dice.chance(30);
    plan.bytes = dice.below(500);
    plan.to = dice.chance(10) ? worker_.id : peers[dice.below(peers.size())];
    if (incoming.body->context.valid() && dice.chance(80)) plan.context = incoming.body->context;
    if (!incoming.references.empty()) {
      const HandlePtr& handle = incoming.references[dice.below(incoming.references.size())];
      if (dice.chance(40)) {
        plan.kind = dice.chance(50) ? CallKind::kFetch : CallKind::kMethod;
        plan.target = handle;
        plan.to = handle->owner;
      } else {
        plan.arguments.push_back(handle);
      }
    }
    start(std::move(plan));
  }
}

void Calls::nested_done(uint64_t number) {
  auto found = incoming_.find(number);
  if (found == incoming_.end()) return;
  --found->second.open;
  finish_if_done(number);
}

void Calls::finish_if_done(uint64_t number) {
  const Incoming& incoming = incoming_.at(number);
  if (incoming.worked && incoming.open == 0) finish(number);
}

void Calls::finish(uint64_t number) {
  auto node = incoming_.extract(number);
  Incoming& incoming = node.mapped();
  Dice& dice = world_.dice;
  References& references = worker_.references;
  if (incoming.creates()) {
    return references.set_value(incoming.body->rref, dice.chance(85), incoming.references);
  }
  for (const HandlePtr& handle : incoming.references) {
    if (dice.chance(35)) references.keep(handle);
  }
  auto body = std::make_shared<ReplyBody>();
  if (incoming.body->kind == CallKind::kPlain && dice.chance(8)) {  // here the function throws
    body->ok = false;
    body->ran = Ran::kYes;
    return answer(incoming, std::move(body), 0);
  }
  if (incoming.body->kind == CallKind::kPlain && dice.chance(25) &&
      worker_.sessions.is_live(incoming.from)) {
    if (const HandlePtr handle = references.some_held()) {
      if (auto reference = references.carry(handle, incoming.from)) {
        body->references.push_back(*std::move(reference));
      }
    }
  }
  if (incoming.body->context.valid()) {
    body->context = incoming.body->context;
    if (!worker_.passes.record_send(incoming.body->context, incoming.from, &incoming.values,
                                    &body->metadata, &body->transfer)) {
      for (const rref_internal::Reference& made : body->references) references.carrier_ended(made);
      body->references.clear();
      body->ok = false;
      body->ran = Ran::kYes;
    }
  }
  const size_t drawn = dice.chance(15) ? 5000 + dice.below(4000) : dice.below(300);
  const size_t bytes = body->ok ? drawn : 0;
  answer(incoming, std::move(body), bytes);
}

// ---- cancelling

bool Calls::on_cancel(WorkerId from, uint64_t call) {
  for (auto& [number, incoming] : incoming_) {
    if (incoming.from != from || incoming.header.call != call) continue;
    incoming.cancelled = true;
    const uint64_t ticket = incoming.creates() ? 0 : incoming.ticket;
    const auto nested = incoming.nested;
    for (const auto& [to, child] : nested) {
      bool sent = false;
      if (!worker_.sessions.cancel(to, child, &sent)) continue;
      on_failed(child, sent ? Ran::kMaybe : Ran::kNo, Where::kHere);
    }
    if (ticket != 0) worker_.references.forget_target(ticket);
    return true;
  }
  return false;
}

void Calls::cancel_all_from(WorkerId gone) {
  std::vector<uint64_t> calls;
  for (const auto& [number, incoming] : incoming_) {
    if (incoming.from == gone) calls.push_back(incoming.header.call);
  }
  for (const uint64_t call : calls) on_cancel(gone, call);
}

void Calls::append_callers(std::vector<WorkerId>& workers) const {
  for (const auto& [number, incoming] : incoming_) workers.push_back(incoming.from);
}

// This call fills the credit window alone, so it can leave only if all credit was returned.
void Calls::probe(WorkerId to) {
  CallPlan plan;
  plan.operation = Operation::kProbe;
  plan.to = to;
  plan.bytes = world_.window.bytes;
  start(std::move(plan));
}

std::string Calls::leftovers() const {
  if (outgoing_.empty() && incoming_.empty()) return {};
  return absl::StrCat(outgoing_.size(), " calls open, ", incoming_.size(), " running");
}

}  // namespace weft::sim
