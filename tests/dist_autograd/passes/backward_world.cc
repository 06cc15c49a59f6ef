#include "weft/tests/dist_autograd/passes/backward_world.h"

#include <algorithm>
#include <utility>
#include <variant>

#include "weft/base/overloaded.h"

namespace weft::dist_autograd_internal {

using namespace backward;  // NOLINT

namespace {

// Copies a message, to deliver it twice. A session delivers once, but the cores must not depend on
// it.
AutogradMessage clone(const AutogradMessage& message) {
  return std::visit(
      Overloaded{
          [](const GradMessage& grad) -> AutogradMessage {
            GradMessage copy{.header = grad.header, .number = grad.number, .reports = grad.reports};
            for (const GradEntry& entry : grad.entries) {
              copy.entries.push_back({entry.send, entry.slots, entry.present,
                                      std::make_unique<IntGradients>(
                                          static_cast<const IntGradients&>(*entry.gradients))});
            }
            return copy;
          },
          [](const auto& typed) -> AutogradMessage { return typed; },
      },
      message);
}

// Returns the number of a counted message, and 0 for the others.
uint64_t number_of(const AutogradMessage& message) {
  if (const auto* grad = std::get_if<GradMessage>(&message)) return grad->number;
  if (const auto* activate = std::get_if<ActivateMessage>(&message)) return activate->number;
  if (const auto* seal = std::get_if<SealMessage>(&message)) return seal->number;
  return 0;
}

}  // namespace

BackwardWorld::BackwardWorld(Options options) : options_(options), random_(options.seed) {
  for (int i = 0; i < options.workers; ++i) {
    workers_.emplace_back().core = std::make_unique<ContextCore>(worker_id(i));
  }
  auto plan = [&](unsigned percent) {
    if (chance(random_, percent)) strikes_.insert(1 + static_cast<int>(below(random_, 60)));
  };
  plan(options.kills + options.cancels + options.deadlines + options.closes);
  plan(options.kills / 2);
  if (chance(random_, options.node_failures)) {
    fail_node_on_ = static_cast<int>(below(random_, options.workers));
  }
}

BackwardWorld::~BackwardWorld() = default;

void BackwardWorld::violation(std::string what) {
  if (broken_.empty()) broken_ = "event " + std::to_string(events_) + ": " + std::move(what);
}

// ---- forward

ContextId BackwardWorld::record(Program program, int creator) {
  program.id_base = next_id_base_;
  for (Program::Transfer& transfer : program.transfers) {
    transfer.id.number = ++next_id_base_;
  }
  const ContextId context = core(creator).create();
  AutogradActions none;
  auto arrive = [&](int from, int to) {
    if (from == to) return;
    absl::Status status = core(to).on_call(worker_id(from), *core(from).metadata(context), none);
    if (!status.ok()) violation("a call was refused: " + status.ToString());
  };
  auto introduce = [&](int worker) {  // by a call without tensors that require grad
    if (core(worker).check(context).ok()) return;
    core(creator).note_peer(context, worker_id(worker)).IgnoreError();
    arrive(creator, worker);
  };
  introduce(program.initiator);
  for (const Program::Transfer& transfer : program.transfers) {
    introduce(transfer.from);
    absl::Status status =
        core(transfer.from).note_send(context, transfer.id, worker_id(transfer.to));
    if (!status.ok()) violation("a send was refused: " + status.ToString());
    if (!transfer.recvs.empty()) arrive(transfer.from, transfer.to);
  }
  std::map<int, uint64_t> truth = program.truth();
  contexts_.emplace(context, Context{std::move(program), std::move(truth), creator});
  return context;
}

// A call under the context that records nothing, but carries what the caller knows of passes.
void BackwardWorld::call_from(int worker, const ContextId& context) {
  const int to = static_cast<int>(below(random_, workers_.size()));
  if (to == worker || !workers_[to].alive || !workers_[worker].alive) return;
  auto metadata = core(worker).metadata(context);
  if (!metadata.ok()) return;
  core(worker).note_peer(context, worker_id(to)).IgnoreError();
  AutogradActions actions;
  absl::Status status = core(to).on_call(worker_id(worker), *metadata, actions);
  act(to, actions);
  if (!status.ok()) return;
  // A worker that hears of a committed pass in a call must let that call read the pass's gradients.
  for (const PassHistory& history : metadata->histories) {
    for (uint64_t k = 1; k <= history.decided; ++k) {
      const PassId pass{context, history.initiator, k};
      if (history.outcome(k) == PassHistory::Outcome::kCommitted &&
          workers_[to].runs.contains(pass)) {
        violation("a committed pass is not readable in a call that knows of it");
      }
    }
  }
}

absl::StatusOr<PassId> BackwardWorld::start(const ContextId& context,
                                            ContextCore::StartOptions options) {
  AutogradActions actions;
  const int initiator = contexts_.at(context).program.initiator;
  absl::StatusOr<PassId> pass = core(initiator).start(context, options, actions);
  if (pass.ok()) running_.insert(*pass);
  act(initiator, actions);
  return pass;
}

// ---- the driver

void BackwardWorld::post(int from, int to, AutogradMessage message) {
  if (from == to) violation("a message to oneself");
  ++sent_[std::string(kind_of(message))];
  if (chance(random_, options_.duplicates)) network_.push_back({from, to, clone(message)});
  network_.push_back({from, to, std::move(message)});
}

// StopLocal, StageMerge and DropStage act at once: they overtake what the strand still holds.
void BackwardWorld::act(int worker, AutogradActions& actions) {
  Worker& here = workers_[worker];
  for (AutogradAction& action : actions) {
    std::visit(Overloaded{
                   [&](Send& send) {
                     if (const auto* seal = std::get_if<SealMessage>(&send.message)) {
                       if (sealed_.insert(seal->pass).second)
                         check_quiet(seal->pass, "at the seal");
                     }
                     post(worker, static_cast<int>(send.to.index), std::move(send.message));
                   },
                   [&](const ArmDeadline& arm) { here.timers.insert(arm.pass); },
                   [&](const CancelDeadline& disarm) { here.timers.erase(disarm.pass); },
                   [&](const CompleteBackward& complete) {
                     const PassId pass = complete.pass;
                     if (!ended_.emplace(pass, complete.outcome).second)
                       violation("a pass ended twice");
                     running_.erase(pass);
                     if (complete.outcome.status.ok() != committed_.contains(pass)) {
                       violation("the outcome of a pass is not what was done");
                     }
                   },
                   [&](const DropContext& gone) { here.readable.erase(gone.context); },
                   [&](const EngageLocal& start) { engage(worker, start); },
                   [&](OneOf<FeedRoots, Feed, Discover, CancelSends> auto& work) {
                     LocalRun* const run = engaged(here, work.pass);
                     if (run == nullptr) return;
                     if (run->stopped) violation("work for a stopped pass");
                     run->strand.push_back(std::move(work));
                   },
                   [&](const StopLocal& stop) {
                     LocalRun* const run = engaged(here, stop.pass);
                     if (run == nullptr) return;
                     run->stopped = true;
                     run->strand.clear();
                   },
                   [&](const DropStage& drop) {
                     if (engaged(here, drop.pass) != nullptr) here.runs.erase(drop.pass);
                   },
                   [&](const StageMerge& decided) {
                     LocalRun* const run = engaged(here, decided.pass);
                     if (run == nullptr) return;
                     on_decision(worker, decided.pass);
                     for (const auto& [leaf, gradient] : run->graph->stage()) {
                       here.readable[decided.pass.context][leaf] += gradient;
                     }
                     here.runs.erase(decided.pass);
                   },
               },
               action);
  }
  actions.clear();
}

void BackwardWorld::engage(int worker, const EngageLocal& start) {
  LocalRun& run = workers_[worker].runs[start.pass];
  if (run.graph) violation("engaged twice in " + start.pass.to_string());
  run.graph = std::make_unique<FakeGraph>(contexts_.at(start.pass.context).program, worker,
                                          start.sources, &broken_);
  if (worker == fail_node_on_) {
    run.graph->fail_after(static_cast<int>(below(random_, 6)));
    fail_node_on_ = -1;
  }
}

BackwardWorld::LocalRun* BackwardWorld::engaged(Worker& worker, const PassId& pass) {
  const auto found = worker.runs.find(pass);
  if (found != worker.runs.end()) return &found->second;
  violation("an action for a pass that is not engaged");
  return nullptr;
}

// I5: the initiator merges first, and its merge is the commit. Others merge only a committed pass.
void BackwardWorld::on_decision(int worker, const PassId& pass) {
  if (worker_id(worker) == pass.initiator) {
    check_quiet(pass, "at the commit");
    committed_.insert(pass);
  } else if (!committed_.contains(pass)) {
    violation("I5: readable before it was committed");
  }
}

// I4: no message that could wake a worker is in flight, and no worker works.
void BackwardWorld::check_quiet(const PassId& pass, const char* when) {
  for (const Envelope& envelope : network_) {
    const uint64_t number = number_of(envelope.message);
    if (number != 0 && *pass_of(envelope.message) == pass &&
        !delivered_.contains({pass, envelope.from, envelope.to, number})) {
      violation(std::string("I4: a ") + std::string(kind_of(envelope.message)) + " is under way " +
                when);
    }
  }
  for (const Worker& worker : workers_) {
    auto run = worker.runs.find(pass);
    if (!worker.alive || run == worker.runs.end()) continue;
    const bool holds_only_own_seal = sealed_.contains(pass) && !committed_.contains(pass);
    if (run->second.holds > 0) violation(std::string("I4: a hold is held ") + when);
    if (!run->second.strand.empty() && !holds_only_own_seal) {
      violation(std::string("I4: someone works ") + when);
    }
  }
}

bool BackwardWorld::work(int worker) {
  std::vector<PassId> busy;
  for (const auto& [pass, run] : workers_[worker].runs) {
    if (!run.strand.empty()) busy.push_back(pass);
  }
  if (busy.empty() || !workers_[worker].alive) return false;
  const PassId pass = busy[below(random_, busy.size())];
  LocalRun& run = workers_[worker].runs.at(pass);
  LocalWork work = std::move(run.strand.front());
  run.strand.pop_front();
  run_local(worker, pass, work);
  return true;
}

void BackwardWorld::run_local(int worker, const PassId& pass, LocalWork& work) {
  ContextCore& core = *workers_[worker].core;
  LocalRun& run = workers_[worker].runs.at(pass);
  FakeGraph& graph = *run.graph;
  AutogradActions actions;
  if (auto* discover = std::get_if<Discover>(&work)) {
    core.on_discovered(pass, graph.discover(discover->from_roots, discover->sources), actions);
    return act(worker, actions);
  }
  const size_t leaves = graph.stage().size();
  auto flush = [&] {
    LocalProgress progress{.outputs = graph.take_outputs(), .done = false};
    core.on_local_progress(pass, std::move(progress), actions);
  };
  std::visit(Overloaded{
                 [](const Discover&) {},  // done above
                 [&](const FeedRoots&) { graph.feed_roots(); },
                 [&](const Feed& feed) {
                   for (const GradEntry& entry : feed.entries) {
                     if (!graph.failed()) graph.feed(entry);
                     if (!options_.in_order && chance(random_, 30)) flush();
                   }
                 },
                 [&](const CancelSends& cancel) {
                   for (const SendId& send : cancel.sources) {
                     if (!graph.failed()) graph.cancel(send);
                   }
                 },
             },
             work);
  if (graph.stage().size() > leaves && chance(random_, options_.holds)) {
    ++run.holds;
    core.on_hold(pass);
  }
  if (graph.failed()) {
    core.on_local_failure(pass, {.status = absl::UnknownError("a node threw"), .node = "Boom"},
                          actions);
  } else {
    core.on_local_progress(
        pass, {.outputs = graph.take_outputs(), .done = true, .waiting = graph.waiting()}, actions);
  }
  act(worker, actions);
}

void BackwardWorld::release_hold(int worker, const PassId& pass) {
  --workers_[worker].runs.at(pass).holds;
  AutogradActions actions;
  core(worker).on_hold_released(pass, actions);
  act(worker, actions);
}

void BackwardWorld::deliver(size_t index) {
  Envelope envelope = std::move(network_[index]);
  network_.erase(network_.begin() + static_cast<ptrdiff_t>(index));
  if (const uint64_t number = number_of(envelope.message); number != 0) {
    delivered_.insert({*pass_of(envelope.message), envelope.from, envelope.to, number});
  }
  AutogradActions actions;
  core(envelope.to).on_message(worker_id(envelope.from), std::move(envelope.message), actions);
  act(envelope.to, actions);
}

void BackwardWorld::fire_deadline(int worker, const PassId& pass) {
  workers_[worker].timers.erase(pass);
  AutogradActions actions;
  core(worker).on_deadline(pass, actions);
  act(worker, actions);
}

// ---- faults

// About half of its messages in flight still arrive, but none after the receiver hears of the
// death.
void BackwardWorld::kill(int victim) {
  if (!workers_[victim].alive) return;
  workers_[victim].alive = false;
  workers_[victim].runs.clear();
  workers_[victim].timers.clear();
  std::erase_if(network_, [&](const Envelope& envelope) {
    return envelope.to == victim || (envelope.from == victim && chance(random_, 50));
  });
  for (int worker = 0; worker < options_.workers; ++worker) {
    if (workers_[worker].alive) workers_[worker].deaths.push_back(victim);
  }
  std::erase_if(running_, [&](const PassId& pass) { return pass.initiator == worker_id(victim); });
}

void BackwardWorld::tell_death(int worker) {
  const int victim = workers_[worker].deaths.front();
  workers_[worker].deaths.pop_front();
  std::erase_if(network_, [&](const Envelope& envelope) {
    return envelope.from == victim && envelope.to == worker;
  });
  AutogradActions actions;
  core(worker).on_peer_dead(worker_id(victim), actions);
  act(worker, actions);
}

void BackwardWorld::strike() {
  const uint64_t total = options_.kills + options_.cancels + options_.deadlines + options_.closes;
  uint64_t kind = below(random_, total);
  const int worker = static_cast<int>(below(random_, workers_.size()));
  if (kind < options_.kills) return kill(worker);
  kind -= options_.kills;
  if (running_.empty()) return;
  auto pass = std::next(running_.begin(), static_cast<ptrdiff_t>(below(random_, running_.size())));
  if (kind < options_.cancels) {
    const int at = chance(random_, 50) ? worker : static_cast<int>(pass->initiator.index);
    if (!workers_[at].alive) return;
    AutogradActions actions;
    core(at).on_local_failure(*pass, {.status = absl::CancelledError("by the user")}, actions);
    return act(at, actions);
  }
  kind -= options_.cancels;
  if (kind < options_.deadlines) {
    const PassId late = *pass;
    for (int at = 0; at < options_.workers; ++at) {  // for some it has passed, for others not
      if (chance(random_, 60) && workers_[at].timers.contains(late)) fire_deadline(at, late);
      if (chance(random_, 20) && workers_[at].timers.contains(late)) fire_deadline(at, late);
    }
    return;
  }
  Context& context = contexts_.at(pass->context);
  if (!workers_[context.creator].alive || context.closed) return;
  context.closed = true;
  AutogradActions actions;
  core(context.creator).release(pass->context, actions).IgnoreError();
  act(context.creator, actions);
}

// ---- the schedule

// Lets one thing happen, chosen among all that can happen now. Returns false if nothing can.
bool BackwardWorld::event() {
  if (strikes_.contains(events_)) strike();
  struct Choice {
    enum { kMessage, kWork, kHold, kDeath } kind;
    int index;
    PassId pass{};
  };
  std::vector<Choice> choices;
  for (size_t i = 0; i < network_.size(); ++i) {
    if (workers_[network_[i].to].alive) choices.push_back({Choice::kMessage, int(i)});
  }
  for (int w = 0; w < options_.workers; ++w) {
    if (!workers_[w].alive) continue;
    for (const auto& [pass, run] : workers_[w].runs) {
      if (!run.strand.empty()) choices.push_back({Choice::kWork, w});
      if (run.holds > 0) choices.push_back({Choice::kHold, w, pass});
    }
    if (!workers_[w].deaths.empty()) choices.push_back({Choice::kDeath, w});
  }
  if (choices.empty()) return false;
  size_t pick = below(random_, choices.size());
  if (options_.in_order) {  // work before messages, oldest first
    auto work = std::find_if(choices.begin(), choices.end(),
                             [](const Choice& c) { return c.kind == Choice::kWork; });
    pick = work == choices.end() ? 0 : static_cast<size_t>(work - choices.begin());
  }
  ++events_;
  const Choice& choice = choices[pick];
  switch (choice.kind) {
    case Choice::kMessage:
      deliver(static_cast<size_t>(choice.index));
      break;
    case Choice::kWork:
      work(choice.index);
      break;
    case Choice::kHold:
      release_hold(choice.index, choice.pass);
      break;
    case Choice::kDeath:
      tell_death(choice.index);
      break;
  }
  return true;
}

void BackwardWorld::run() {
  while (broken_.empty() && event()) {
    if (events_ > 100000) violation("the run does not end");
  }
}

void BackwardWorld::run_passes(
    const std::map<ContextId, std::vector<ContextCore::StartOptions>>& passes) {
  std::map<ContextId, size_t> next;
  std::map<ContextId, PassId> current;
  bool more = true;
  while (more && broken_.empty()) {
    for (const auto& [context, all] : passes) {
      const Context& about = contexts_.at(context);
      if (!workers_[about.program.initiator].alive || about.closed) continue;
      auto pass = current.find(context);
      if (pass != current.end() && running_.contains(pass->second)) continue;
      if (next[context] == all.size()) continue;
      absl::StatusOr<PassId> id = start(context, all[next[context]++]);
      if (id.ok()) current[context] = *id;
    }
    more = event();
    if (!contexts_.empty() && chance(random_, 5)) {
      auto it = std::next(contexts_.begin(), ptrdiff_t(below(random_, contexts_.size())));
      call_from(it->second.program.initiator, it->first);
    }
  }
  run();
  // I6, stricter than the protocol's deadline: when deaths are known, no pass needs a timer to
  // stop.
  for (const PassId& pass : running_) violation("I6: never ended: " + pass.to_string());
  for (const Worker& worker : workers_) {
    if (!worker.alive) continue;
    for (const auto& [pass, run] : worker.runs) {
      violation("I6: left behind: " + pass.to_string());
    }
    if (!worker.timers.empty()) violation("a timer was left armed");
  }
  for (const auto& [context, about] : contexts_) check_gradients(context);
  close_all();
}

// I7: at every live worker, the readable gradients are the sums of the committed passes, as in one
// process. A worker that was cut off from a committed pass must say so.
void BackwardWorld::check_gradients(const ContextId& context) {
  const Context& about = contexts_.at(context);
  for (int worker = 0; worker < options_.workers; ++worker) {
    if (!workers_[worker].alive || !core(worker).check(context).ok()) continue;
    std::map<int, uint64_t> expected;
    bool cut_off = false;
    for (const PassId& pass : committed_) {
      if (pass.context != context) continue;
      const auto standing = core(worker).standing(pass);
      cut_off = cut_off || standing == ContextCore::PassStanding::kDropped;
      if (standing == ContextCore::PassStanding::kAborted) violation("a committed pass is aborted");
      if (!workers_[pass.initiator.index].alive) cut_off = true;
      for (const auto& [leaf, gradient] : about.truth) {
        if (about.program.values[leaf].worker == worker) expected[leaf] += gradient;
      }
    }
    if (!cut_off && readable(worker, context) != expected) {
      violation("I7: gradients of worker " + std::to_string(worker) + " differ from one process");
    }
  }
}

std::map<int, uint64_t> BackwardWorld::readable(int worker, const ContextId& context) const {
  auto it = workers_[worker].readable.find(context);
  return it == workers_[worker].readable.end() ? std::map<int, uint64_t>() : it->second;
}

void BackwardWorld::close_all() {
  for (auto& [context, about] : contexts_) {
    if (!workers_[about.creator].alive || about.closed) continue;
    about.closed = true;
    AutogradActions actions;
    core(about.creator).release(context, actions).IgnoreError();
    act(about.creator, actions);
  }
  run();
  for (int worker = 0; worker < options_.workers; ++worker) {
    if (workers_[worker].alive && core(worker).size() != 0) {
      violation("worker " + std::to_string(worker) + " still holds " +
                core(worker).contexts().front().to_string());
    }
  }
}

}  // namespace weft::dist_autograd_internal
