#include "weft/tests/sim/rooms/step_owner.h"

#include <utility>
#include <variant>

#include "absl/strings/str_cat.h"
#include "weft/base/overloaded.h"
#include "weft/base/status.h"
#include "weft/tests/sim/world/world.h"

namespace weft::sim {

using dist_optim_internal::OwnerAction;
using dist_optim_internal::OwnerActions;
using dist_optim_internal::StepId;
namespace step = dist_optim_internal::step;

namespace {

constexpr double kRate = 0.1;
constexpr Nanoseconds kLook = std::chrono::milliseconds(50);

}  // namespace

StepOwner::StepOwner(Worker& worker, Steps& room)
    : worker_(worker), world_(worker.world), room_(room) {
  std::vector<StepCheckpoint>& disk = world_.steps.disk(worker_.id.index);
  if (disk.empty()) {  // so that a crash before the first checkpoint is also noticed
    disk.emplace_back();
  } else {
    restore(disk.back(), true);
  }
}

void StepOwner::restore(const StepCheckpoint& from, bool restarted) {
  OwnerActions actions;
  core_.restore(from.sequences, actions);
  carry_out(std::move(actions));
  world_.steps.restore(worker_.id, from, restarted);
  restored_ = world_.step_lines();
}

// ---- calls

void StepOwner::serve(uint64_t incoming, WorkerId from, const StepRequest& request) {
  using Kind = StepRequest::Kind;
  constexpr const char* kKinds[] = {"meet",  "join",    "prepare", "finish",  "settle", "commit",
                                    "abort", "inquire", "part",    "go back", "resume"};
  if (world_.trace.on()) {
    world_.trace.add(absl::StrCat("  ", worker_.id.to_string(), " is asked by ", from.to_string(),
                                  ": ", kKinds[static_cast<size_t>(request.kind)], " ",
                                  request.step.to_string(), " ", request.sequence, " number ",
                                  request.number));
  }
  OwnerActions actions;
  StepReply reply;
  switch (request.kind) {
    case Kind::kMeet:
      others_[request.step.optimizer] = request.workers;
      core_.meet(request.step.optimizer, request.workers);
      break;
    case Kind::kPart:
      others_.erase(request.step.optimizer);
      break;
    case Kind::kJoin: {
      const auto standing = core_.join(request.step.optimizer, request.sequence);
      reply.status = standing.status();
      if (standing.ok()) reply.standing = *standing;
      break;
    }
    case Kind::kPrepare: {
      const absl::StatusOr<double> norm2 = prepare(request);
      reply.status = norm2.status();
      if (norm2.ok()) reply.norm2 = *norm2;
      break;
    }
    case Kind::kFinish: {
      const absl::StatusOr<double> own = prepare(request);
      reply.status = own.status();
      if (!own.ok()) break;
      reply.summary.norm2 = *own + request.others_norm2;
      reply.summary.clip = dist_optim_internal::clip_factor(reply.summary.norm2, request.max_norm);
      reply.status = commit(request, reply.summary.clip);
      if (reply.status.ok()) return answer_once_durable(incoming, request, std::move(reply));
      (void)core_.abort(request.step, actions);
      break;
    }
    case Kind::kCommit:
      reply.status = commit(request, request.clip);
      if (reply.status.ok()) return answer_once_durable(incoming, request, std::move(reply));
      break;
    case Kind::kSettle: {
      const absl::StatusOr<dist_optim_internal::StepDecision> decision =
          core_.settle(request.step, actions);
      reply.status = decision.status();
      if (decision.ok()) reply.decision = *decision;
      break;
    }
    case Kind::kAbort:
      reply.status = core_.abort(request.step, actions);
      break;
    case Kind::kInquire:
      world_.doom_in_inquiry(worker_.slot);
      reply.decision = core_.inquire(request.step, request.workers, actions);
      break;
    case Kind::kGoBack:
      reply.status = go_back(request);
      break;
    case Kind::kResume:
      reply.status = core_.resume(request.step.optimizer, request.number, false);
      if (reply.status.ok()) restored_.erase(core_.sequence_of(request.step.optimizer));
      break;
  }
  carry_out(std::move(actions));
  worker_.calls.answer_step(incoming, std::move(reply));
}

absl::StatusOr<double> StepOwner::prepare(const StepRequest& request) {
  WEFT_ASSIGN_OR_RETURN(const std::optional<double> before, core_.prepare(request.step));
  if (before.has_value()) return *before;
  if (world_.dice.chance(4)) return absl::InvalidArgumentError("the gradients do not fit");
  const double norm2 = static_cast<double>(world_.dice.between(1, 9));
  OwnerActions actions;
  core_.on_prepared(request.step, norm2, {kRate}, actions);
  carry_out(std::move(actions));
  return norm2;
}

absl::Status StepOwner::commit(const StepRequest& request, double clip) {
  OwnerActions actions;
  WEFT_RETURN_IF_ERROR(core_.commit(request.step, {{kRate}, clip}, actions));
  carry_out(std::move(actions));
  return absl::OkStatus();
}

// ---- checkpoints

dist_optim_internal::StepDurable StepOwner::durable(const std::string& sequence) const {
  const StepCheckpoint& newest = world_.steps.disk(worker_.id.index).back();
  const auto found = newest.sequences.find(sequence);
  return {found == newest.sequences.end() ? 0 : found->second, 0, {}};
}

void StepOwner::answer_once_durable(uint64_t incoming, const StepRequest& request,
                                    StepReply reply) {
  const std::string sequence = core_.sequence_of(request.step.optimizer);
  if (!world_.every_step_durable && request.step.number % world_.durable_every != 0) {
    reply.durable = reply.summary.durable = durable(sequence);
    return worker_.calls.answer_step(incoming, std::move(reply));
  }
  for_copy_.push_back({incoming, sequence, std::move(reply)});
  if (!writing_) write_next();
}

// Copies the state of one moment. A COMMIT is answered now, or when the copy is on disk.
void StepOwner::write_next() {
  writing_ = true;
  copy_ = {world_.steps.parameters(worker_.id), core_.sequences()};
  const uint64_t copy = ++copies_;
  std::vector<Waiter> waiters = std::exchange(for_copy_, {});
  if (world_.every_step_durable) {
    for_disk_ = std::move(waiters);
  } else {
    for (Waiter& waiter : waiters) {
      waiter.reply.durable = waiter.reply.summary.durable = durable(waiter.sequence);
      worker_.calls.answer_step(waiter.incoming, std::move(waiter.reply));
    }
  }
  room_.after(world_.dice.micros(100, 8000), [this, copy] {
    if (copy == copies_ && writing_) written();
  });
}

void StepOwner::written() {
  world_.steps.written(worker_.id.index, copy_);
  writing_ = false;
  for (Waiter& waiter : std::exchange(for_disk_, {})) {
    waiter.reply.durable = waiter.reply.summary.durable = durable(waiter.sequence);
    worker_.calls.answer_step(waiter.incoming, std::move(waiter.reply));
  }
  if (!for_copy_.empty() && !writing_) write_next();
}

absl::Status StepOwner::go_back(const StepRequest& request) {
  WEFT_ASSIGN_OR_RETURN(const dist_optim_internal::SequenceStanding standing,
                        core_.join(request.step.optimizer, request.sequence));
  if (standing.applied == request.number) return absl::OkStatus();
  while (writing_) written();  // one thread writes and goes back, so finish the write first
  const std::vector<StepCheckpoint> disk = world_.steps.disk(worker_.id.index);
  for (auto checkpoint = disk.rbegin(); checkpoint != disk.rend(); ++checkpoint) {
    const auto found = checkpoint->sequences.find(request.sequence);
    if ((found == checkpoint->sequences.end() ? 0 : found->second) != request.number) continue;
    restore(*checkpoint, false);
    // Written again as the newest one, so that a restart does not bring back later steps.
    world_.steps.written(worker_.id.index, *checkpoint);
    return absl::OkStatus();
  }
  return absl::NotFoundError("no checkpoint holds exactly that");
}

// ---- without the caller

// The watch of a shard looks only now and then.
void StepOwner::on_peer_dead(WorkerId dead) {
  for (const auto& [optimizer, others] : others_) {
    if (optimizer.creator != dead) continue;
    const OptimizerId id = optimizer;
    room_.after(world_.dice.micros(0, 50000), [this, id] { caller_died(id); });
  }
}

void StepOwner::caller_died(const OptimizerId& optimizer) {
  OwnerActions actions;
  core_.on_worker_dead(optimizer, optimizer.creator, actions);
  carry_out(std::move(actions));
}

void StepOwner::carry_out(OwnerActions actions) {
  for (const OwnerAction& action : actions) {
    std::visit(Overloaded{
                   [&](const step::Apply& apply) {
                     world_.doom(worker_.slot, 2);
                     world_.steps.apply(worker_.id, core_.sequence_of(apply.step.optimizer),
                                        apply.step, apply.update.clip);
                   },
                   [](const step::Drop&) {},  // no gradients are kept here
                   [&](const step::Ask& question) { ask(question); },
               },
               action);
  }
}

void StepOwner::ask(const step::Ask& question) {
  const auto others = others_.find(question.step.optimizer);
  if (others == others_.end()) return;
  world_.report.count(Effect::kOwnersAsked);
  if (!question.dead.empty()) world_.report.count(Effect::kSecondDeaths);
  world_.doom_in_inquiry(worker_.slot);
  StepRequest request;
  request.kind = StepRequest::Kind::kInquire;
  request.step = question.step;
  request.workers = question.dead;
  room_.send(others->second.at(question.other), std::move(request), kNever,
             [this, question](const absl::Status& failure, const StepReply& reply) {
               answered(question, failure, reply.decision);
             });
}

void StepOwner::answered(const step::Ask& question, const absl::Status& failure,
                         const dist_optim_internal::StepDecision& decision) {
  if (core_.outcome(question.step) != dist_optim_internal::StepOutcome::kPrepared) return;
  const WorkerId owner = others_.at(question.step.optimizer).at(question.other);
  OwnerActions actions;
  if (failure.ok()) {
    core_.on_answer(question.step, question.other, question.round, decision, actions);
  } else if (!worker_.sessions.is_live(owner)) {
    core_.on_worker_dead(question.step.optimizer, owner, actions);
  } else {
    // It is alive and did not answer, so perhaps it applied the step. Ask again.
    return room_.after(kLook, [this, question] { ask(question); });
  }
  carry_out(std::move(actions));
}

std::string StepOwner::leftovers() const {
  std::string text;
  for (const StepId& step : core_.undecided()) {
    absl::StrAppend(&text, " undecided: ", step.to_string());
  }
  if (writing_ || !for_copy_.empty() || !for_disk_.empty()) absl::StrAppend(&text, " writes");
  return text;
}

}  // namespace weft::sim
