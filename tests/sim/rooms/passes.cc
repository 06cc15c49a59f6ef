#include "weft/tests/sim/rooms/passes.h"

#include <utility>
#include <variant>

#include "absl/strings/str_cat.h"
#include "weft/base/overloaded.h"
#include "weft/tests/sim/world/world.h"

namespace weft::sim {

using namespace weft::rpc_internal;                      // NOLINT: the words of the protocol
using namespace weft::rref_internal;                     // NOLINT: as above
using namespace weft::dist_autograd_internal;            // NOLINT: as above
using namespace weft::dist_autograd_internal::backward;  // NOLINT: and its actions

namespace {

constexpr size_t kMaxTransfers = 90;  // per context, because a graph has room for 192 sources

// A session keeps what it sent, so the receiver works on a copy.
dist_autograd_internal::AutogradMessage clone(
    const dist_autograd_internal::AutogradMessage& message) {
  return std::visit(
      Overloaded{
          [](const dist_autograd_internal::GradMessage& grad) -> AutogradMessage {
            dist_autograd_internal::GradMessage copy{
                .header = grad.header, .number = grad.number, .reports = grad.reports};
            copy.entries.reserve(grad.entries.size());
            for (const dist_autograd_internal::GradEntry& entry : grad.entries) {
              copy.entries.push_back({entry.send, entry.slots, entry.present,
                                      std::make_unique<dist_autograd_internal::IntGradients>(
                                          static_cast<const dist_autograd_internal::IntGradients&>(
                                              *entry.gradients))});
            }
            return copy;
          },
          [](const auto& typed) -> AutogradMessage { return typed; },
      },
      message);
}

// Counted messages have a number, and their receiver becomes active.
bool is_counted(const dist_autograd_internal::AutogradMessage& message) {
  return std::holds_alternative<dist_autograd_internal::GradMessage>(message) ||
         std::holds_alternative<dist_autograd_internal::ActivateMessage>(message) ||
         std::holds_alternative<dist_autograd_internal::SealMessage>(message);
}

}  // namespace

Passes::Passes(Worker& worker) : worker_(worker), world_(worker.world), core_(worker.id) {}
Passes::~Passes() = default;

bool Passes::works(const dist_autograd_internal::PassId& pass) const {
  auto found = runs_.find(pass);
  return found != runs_.end() && !found->second.strand.empty();
}

bool Passes::holds(const dist_autograd_internal::PassId& pass) const {
  auto found = runs_.find(pass);
  return found != runs_.end() && found->second.holds > 0;
}

// ---- the program

void Passes::open_context() {
  const ContextId id = core_.create();
  ContextFacts& facts = world_.add_context(id);
  facts.creator = worker_.slot;
  facts.program.id_base = world_.contexts.size() << 16;
  open_.insert(id);
  world_.report.end(Operation::kOpenContext, Outcome::kValue);
}

ContextId Passes::some_context() {
  const std::vector<ContextId> all = core_.contexts();
  return all.empty() ? ContextId() : all[world_.dice.below(all.size())];
}

void Passes::release_one() {
  if (open_.empty()) return;
  const ContextId id = *std::next(open_.begin(), ptrdiff_t(world_.dice.below(open_.size())));
  open_.erase(id);
  world_.contexts.at(id).released = true;
  dist_autograd_internal::AutogradActions actions;
  const bool ok = core_.release(id, actions).ok();
  world_.report.end(Operation::kReleaseContext, ok ? Outcome::kValue : Outcome::kNotRun);
  act(actions);
}

std::vector<int>& Passes::usable(ContextFacts& facts) {
  std::vector<int>& values = facts.usable[worker_.slot];
  if (values.empty()) values.push_back(facts.program.leaf(static_cast<int>(worker_.slot)));
  return values;
}

int Passes::make_value(ContextFacts& facts, const std::vector<int>& from) {
  Dice& dice = world_.dice;
  std::vector<dist_autograd_internal::Program::Input> inputs;
  for (size_t i = 0, n = 1 + dice.below(3); i < n; ++i) {
    // Late values are more likely, so that graphs get deep.
    const size_t reach = dice.chance(70) ? std::min<size_t>(from.size(), 4) : from.size();
    inputs.push_back(
        {from[from.size() - 1 - dice.below(reach)], 1 + dice.below(1000), dice.chance(6)});
  }
  return facts.program.op(static_cast<int>(worker_.slot), std::move(inputs));
}

void Passes::backward() {
  const ContextId id = some_context();
  if (!id.valid()) return;
  ContextFacts& facts = world_.contexts.at(id);
  Dice& dice = world_.dice;
  std::vector<dist_autograd_internal::Program::Root> roots;
  roots.push_back({make_value(facts, usable(facts)), 1 + dice.below(9)});
  const unsigned mode = static_cast<unsigned>(dice.below(10));
  dist_autograd_internal::ContextCore::StartOptions options;
  options.mode = mode < 6   ? dist_autograd_internal::BackwardMode::kDefault
                 : mode < 9 ? dist_autograd_internal::BackwardMode::kEager
                            : dist_autograd_internal::BackwardMode::kAllSends;
  options.retain_graph = dice.chance(50);
  options.budget = dice.chance(25)   ? absl::InfiniteDuration()
                   : dice.chance(25) ? absl::Microseconds(100 + dice.below(5000))
                                     : absl::Milliseconds(700);
  dist_autograd_internal::AutogradActions actions;
  absl::StatusOr<dist_autograd_internal::PassId> pass = core_.start(id, options, actions);
  if (!pass.ok()) {
    world_.report.end(Operation::kBackward, Outcome::kNotRun);
    return act(actions);
  }
  started_.push_back(*pass);
  world_.checker.passes.start(*pass, worker_.slot, std::move(roots));
  act(actions);
}

void Passes::cancel_one() {
  if (runs_.empty()) return;
  const dist_autograd_internal::PassId pass =
      std::next(runs_.begin(), static_cast<ptrdiff_t>(world_.dice.below(runs_.size())))->first;
  dist_autograd_internal::AutogradActions actions;
  core_.on_local_failure(pass, {.status = absl::CancelledError("by the user")}, actions);
  world_.report.end(Operation::kCancelPass, Outcome::kValue);
  act(actions);
}

// ---- recording

bool Passes::record_send(const ContextId& context, WorkerId to, std::vector<int>* values,
                         dist_autograd_internal::AutogradMetadata* metadata, size_t* transfer) {
  ContextFacts& facts = world_.contexts.at(context);
  Dice& dice = world_.dice;
  dist_autograd_internal::Program& program = facts.program;
  SendId send;
  std::vector<int> sources;
  if (core_.check(context).ok() && dice.chance(85) && program.transfers.size() < kMaxTransfers) {
    std::vector<int> from = usable(facts);
    if (values != nullptr) {
      if (!values->empty()) from = *values;
      values->push_back(make_value(facts, from));
      from.push_back(values->back());
    }
    for (size_t i = 0, n = 1 + dice.below(2); i < n; ++i) {
      sources.push_back(from[from.size() - 1 - dice.below(std::min<size_t>(from.size(), 4))]);
    }
    send = {worker_.id, program.id_base + program.transfers.size() + 1};
  }
  const absl::Status noted =
      send.valid() ? core_.note_send(context, send, to) : core_.note_peer(context, to);
  if (!noted.ok()) return false;
  *metadata = *core_.metadata(context);
  metadata->send = send;
  if (!send.valid()) return true;
  *transfer = program.transfers.size();
  dist_autograd_internal::Program::Transfer record;
  record.id = send;
  record.from = static_cast<int>(worker_.slot);
  record.to = static_cast<int>(world_.slot_of(to));
  record.sources = std::move(sources);
  program.transfers.push_back(std::move(record));
  return true;
}

bool Passes::record_receive(WorkerId from, const ContextId& context,
                            const dist_autograd_internal::AutogradMetadata& metadata,
                            size_t transfer, std::vector<int>* values) {
  dist_autograd_internal::AutogradActions actions;
  const bool ok = core_.on_call(from, metadata, actions).ok();
  act(actions);
  if (!ok) return false;
  // If a call tells a worker of a committed pass, the worker reads its gradients in that call.
  for (const dist_autograd_internal::PassHistory& history : metadata.histories) {
    for (uint64_t k = history.complete_from; k <= history.decided; ++k) {
      const dist_autograd_internal::PassId pass{context, history.initiator, k};
      if (history.outcome(k) == dist_autograd_internal::PassHistory::Outcome::kCommitted &&
          runs_.contains(pass)) {
        world_.violate("I5", "a committed pass is not readable in a call that knows of it");
      }
    }
  }
  if (!metadata.send.valid()) return true;
  ContextFacts& facts = world_.contexts.at(context);
  dist_autograd_internal::Program& program = facts.program;
  const int slots = static_cast<int>(program.transfers[transfer].sources.size());
  for (int slot = 0; slot < slots; ++slot) {
    const int value = static_cast<int>(program.values.size());
    program.transfers[transfer].recvs.push_back(value);
    program.values.push_back({.worker = static_cast<int>(worker_.slot),
                              .transfer = static_cast<int>(transfer),
                              .slot = static_cast<uint32_t>(slot)});
    if (values != nullptr) values->push_back(value);
    if (values == nullptr || world_.dice.chance(20)) usable(facts).push_back(value);
  }
  return true;
}

// ---- the driver

// StopLocal, StageMerge and DropStage run at once: they overtake work that waits in the strand.
void Passes::act(dist_autograd_internal::AutogradActions& actions) {
  PassBook& book = world_.checker.passes;
  for (dist_autograd_internal::AutogradAction& action : actions) {
    std::visit(Overloaded{
                   [&](dist_autograd_internal::backward::Send& send) { hand_out(std::move(send)); },
                   [&](const ArmDeadline& arm) {
                     const Nanoseconds after = absl::ToChronoNanoseconds(arm.after);
                     const uint64_t number = ++last_timer_;
                     timers_[arm.pass] = {number, world_.schedule.now() + after};
                     world_.schedule.in(after, EventKind::kPassTimer, worker_.slot,
                                        book.number(arm.pass), number);
                   },
                   [&](const CancelDeadline& disarm) { timers_.erase(disarm.pass); },
                   [&](const CompleteBackward& complete) {
                     book.complete(complete.pass, complete.outcome);
                   },
                   [&](const DropContext& gone) {
                     readable_.erase(gone.context);
                     open_.erase(gone.context);
                   },
                   [&](const EngageLocal& start) { engage(start); },
                   [&](OneOf<FeedRoots, Feed, Discover, CancelSends> auto& work) {
                     enqueue(work.pass, std::move(work));
                   },
                   [&](const StopLocal& stop) {
                     LocalRun* const run = engaged(stop.pass);
                     if (run == nullptr) return;
                     run->stopped = true;
                     run->strand.clear();
                   },
                   [&](const DropStage& drop) {
                     if (engaged(drop.pass) == nullptr) return;
                     book.part_dropped(drop.pass, worker_.slot);
                     runs_.erase(drop.pass);
                   },
                   [&](const StageMerge& decided) {
                     LocalRun* const run = engaged(decided.pass);
                     if (run == nullptr) return;
                     merge(decided.pass, *run);
                     runs_.erase(decided.pass);
                   },
               },
               action);
  }
  actions.clear();
}

void Passes::engage(const dist_autograd_internal::backward::EngageLocal& start) {
  const dist_autograd_internal::PassId& pass = start.pass;
  PassBook& book = world_.checker.passes;
  LocalRun& run = runs_[pass];
  if (run.graph != nullptr) world_.violate("I6", "engaged twice in " + pass.to_string());
  book.engage(pass, worker_.slot);
  const ContextFacts& facts = world_.contexts.at(pass.context);
  run.graph = std::make_unique<dist_autograd_internal::FakeGraph>(
      facts.program, static_cast<int>(worker_.slot),
      pass.initiator == worker_.id ? book.roots(pass)
                                   : std::vector<dist_autograd_internal::Program::Root>(),
      start.sources, &broken_);
  if (world_.failing_nodes > 0 && world_.dice.chance(world_.failing_nodes)) {
    world_.report.inject(Fault::kNodeFailure);
    run.graph->fail_after(static_cast<int>(world_.dice.below(5)));
  }
}

Passes::LocalRun* Passes::engaged(const dist_autograd_internal::PassId& pass) {
  const auto found = runs_.find(pass);
  if (found != runs_.end()) return &found->second;
  world_.violate("I6", "an action for a pass that is not engaged");
  return nullptr;
}

void Passes::enqueue(dist_autograd_internal::PassId pass, dist_autograd_internal::LocalWork work) {
  LocalRun* const run = engaged(pass);
  if (run == nullptr) return;
  if (run->stopped) world_.violate("I6", "work for a stopped pass");
  if (std::holds_alternative<Discover>(work)) world_.report.count(Effect::kDiscoveries);
  run->strand.push_back(std::move(work));
  world_.schedule.in(world_.dice.micros(1, 80), EventKind::kPassWork, worker_.slot,
                     world_.checker.passes.number(pass));
}

void Passes::merge(const dist_autograd_internal::PassId& pass, LocalRun& run) {
  world_.checker.passes.merge(pass, worker_.slot, run.graph->stage());
  for (const auto& [leaf, gradient] : run.graph->stage()) {
    readable_[pass.context][leaf] += gradient;
  }
}

void Passes::run_local(const dist_autograd_internal::PassId& pass) {
  auto found = runs_.find(pass);
  if (found == runs_.end() || found->second.strand.empty()) return;
  LocalRun& run = found->second;
  dist_autograd_internal::LocalWork work = std::move(run.strand.front());
  run.strand.pop_front();
  dist_autograd_internal::FakeGraph& graph = *run.graph;
  dist_autograd_internal::AutogradActions actions;
  if (auto* discover = std::get_if<Discover>(&work)) {
    core_.on_discovered(pass, graph.discover(discover->from_roots, discover->sources), actions);
    return act(actions);
  }
  const size_t leaves = graph.stage().size();
  std::visit(Overloaded{
                 [](const Discover&) {},  // done above
                 [&](const FeedRoots&) { graph.feed_roots(); },
                 [&](const Feed& feed) {
                   for (const dist_autograd_internal::GradEntry& entry : feed.entries) {
                     if (!graph.failed()) graph.feed(entry);
                     if (world_.dice.chance(20)) {  // enough outputs for one message
                       core_.on_local_progress(
                           pass, {.outputs = graph.take_outputs(), .done = false}, actions);
                     }
                   }
                 },
                 [&](const CancelSends& cancel) {
                   for (const SendId& send : cancel.sources) {
                     if (!graph.failed()) graph.cancel(send);
                   }
                 },
             },
             work);
  if (!broken_.empty()) world_.violate("I1-I3", broken_);
  if (graph.stage().size() > leaves && world_.dice.chance(world_.holds)) {
    ++run.holds;
    core_.on_hold(pass);
    world_.schedule.in(world_.dice.micros(20, 2000), EventKind::kHold, worker_.slot,
                       world_.checker.passes.number(pass));
  }
  if (graph.failed()) {
    world_.report.effect(Fault::kNodeFailure);
    core_.on_local_failure(pass, {.status = absl::UnknownError("a node threw"), .node = "Boom"},
                           actions);
  } else {
    core_.on_local_progress(
        pass, {.outputs = graph.take_outputs(), .done = true, .waiting = graph.waiting()}, actions);
  }
  act(actions);
}

// ---- messages

void Passes::hand_out(dist_autograd_internal::backward::Send send) {
  world_.checker.passes.on_sent(worker_.slot, send.to, send.message, is_counted(send.message));
  if (world_.trace.on()) {
    const dist_autograd_internal::PassId* pass = pass_of(send.message);
    world_.trace.add(absl::StrCat(
        "  ", std::string(kind_of(send.message)), " to ", send.to.to_string(), " ",
        pass != nullptr ? pass->to_string()
                        : dist_autograd_internal::context_of(send.message).to_string()));
  }
  std::vector<dist_autograd_internal::AutogradMessage>& piggybacked = piggybacked_[send.to];
  if (dist_autograd_internal::may_piggyback(send.message)) {
    piggybacked.push_back(std::move(send.message));
    if (std::exchange(piggyback_armed_, true)) return;
    return world_.schedule.in(std::chrono::milliseconds(5), EventKind::kPiggybacked, worker_.slot);
  }
  if (dist_autograd_internal::PassHeader* header =
          dist_autograd_internal::header_of(send.message)) {
    if (auto timer = timers_.find(header->pass); timer != timers_.end()) {
      header->budget = std::max(absl::FromChrono(timer->second.deadline - world_.schedule.now()),
                                absl::Microseconds(1));
    }
  }
  auto batch = std::make_shared<AutogradPost>();
  batch->messages = std::exchange(piggybacked, {});
  batch->messages.push_back(std::move(send.message));
  post(send.to, std::move(batch));
}

void Passes::send_piggybacked() {
  piggyback_armed_ = false;
  for (auto& [to, piggybacked] : std::exchange(piggybacked_, {})) {
    if (piggybacked.empty()) continue;
    auto batch = std::make_shared<AutogradPost>();
    batch->messages = std::move(piggybacked);
    post(to, std::move(batch));
  }
}

void Passes::post(WorkerId to, std::shared_ptr<AutogradPost> batch) {
  worker_.sessions.post(to, rpc_internal::Topic::kAutograd, std::move(batch), 60);
}

void Passes::on_post(WorkerId from, const std::shared_ptr<void>& body) {
  for (const dist_autograd_internal::AutogradMessage& message :
       static_cast<const AutogradPost*>(body.get())->messages) {
    dist_autograd_internal::AutogradActions actions;
    world_.checker.passes.on_read(worker_.slot, message, is_counted(message));
    core_.on_message(from, clone(message), actions);
    act(actions);
  }
}

void Passes::on_stale_post(WorkerId from, const std::shared_ptr<void>& body) {
  for (const dist_autograd_internal::AutogradMessage& message :
       static_cast<const AutogradPost*>(body.get())->messages) {
    dist_autograd_internal::AutogradActions actions;
    core_.on_message(from, clone(message), actions);
    if (!actions.empty())
      world_.violate("S7", "a message of an ended incarnation caused an action");
  }
}

void Passes::on_peer_dead(WorkerId dead) {
  dist_autograd_internal::AutogradActions actions;
  core_.on_peer_dead(dead, actions);
  act(actions);
}

void Passes::on_event(const Event& event) {
  if (event.kind == EventKind::kPiggybacked) return send_piggybacked();
  const dist_autograd_internal::PassId pass = world_.checker.passes.id(event.a);
  if (event.kind == EventKind::kPassWork) return run_local(pass);
  dist_autograd_internal::AutogradActions actions;
  if (event.kind == EventKind::kHold) {
    auto found = runs_.find(pass);
    if (found == runs_.end()) return;
    --found->second.holds;
    core_.on_hold_released(pass, actions);
  } else {
    auto found = timers_.find(pass);
    if (found == timers_.end() || found->second.number != event.b) return;
    timers_.erase(found);
    core_.on_deadline(pass, actions);
  }
  act(actions);
}

// ---- Room

void Passes::let_go() {
  while (!open_.empty()) release_one();
}

void Passes::check() const {
  for (const auto& [context, gradients] : readable_) {
    if (!core_.check(context).ok()) {
      world_.violate("I5", "gradients of a context that is not known here: " + context.to_string());
    }
  }
}

std::string Passes::leftovers() const {
  if (core_.size() == 0 && runs_.empty() && timers_.empty() && readable_.empty()) return {};
  std::string text = absl::StrCat(core_.size(), " contexts, ", runs_.size(), " passes, ",
                                  timers_.size(), " timers, gradients of ", readable_.size());
  for (const ContextId& context : core_.contexts()) {
    absl::StrAppend(&text, " ", context.to_string());
  }
  return text;
}

}  // namespace weft::sim
