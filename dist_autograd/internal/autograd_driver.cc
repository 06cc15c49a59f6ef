#include "weft/dist_autograd/autograd_driver.h"

#include <algorithm>
#include <utility>
#include <variant>

#include "absl/strings/str_cat.h"
#include "weft/base/faults/fail_point.h"
#include "weft/base/status.h"
#include "weft/dist_autograd/internal/inline_executor.h"

namespace weft::dist_autograd_internal {

using namespace backward;  // NOLINT: the actions, in the file that carries them out

namespace {

// A message for which nobody waits is deferred this long, so that it can be piggybacked on another.
constexpr std::chrono::milliseconds kPiggybackWait{5};

}  // namespace

// Tells the driver about the progress of a pass, if the driver still exists.
class AutogradDriver::Listener final : public LocalPass::Listener {
 public:
  Listener(std::weak_ptr<AutogradDriver> driver) : driver_(std::move(driver)) {}

  void on_progress(const PassId& pass, LocalProgress progress) override {
    if (auto driver = driver_.lock()) {
      driver->step(
          [&](ContextCore& core, AutogradActions& out) {
            core.on_local_progress(pass, std::move(progress), out);
          },
          On::kUserThread);
    }
  }
  void on_discovered(const PassId& pass, std::vector<PeerSends> reached) override {
    if (auto driver = driver_.lock()) {
      driver->step(
          [&](ContextCore& core, AutogradActions& out) { core.on_discovered(pass, reached, out); },
          On::kUserThread);
    }
  }
  void on_failure(const PassId& pass, PassFailure failure) override {
    if (auto driver = driver_.lock()) {
      driver->step(
          [&](ContextCore& core, AutogradActions& out) {
            core.on_local_failure(pass, std::move(failure), out);
          },
          On::kUserThread);
    }
  }
  void on_hold(const PassId& pass) override {
    if (auto driver = driver_.lock()) {
      driver->step([&](ContextCore& core, AutogradActions&) { core.on_hold(pass); });
    }
  }
  void on_hold_released(const PassId& pass) override {
    if (auto driver = driver_.lock()) {
      driver->step(
          [&](ContextCore& core, AutogradActions& out) { core.on_hold_released(pass, out); },
          On::kUserThread);
    }
  }
  void begin_work() override {
    if (auto driver = driver_.lock()) {
      driver->agent_.hold_work();
      driver->disposal_.begin_work();
    }
  }
  void end_work() override {
    if (auto driver = driver_.lock()) {
      driver->disposal_.end_work();
      driver->agent_.release_work();
    }
  }

 private:
  const std::weak_ptr<AutogradDriver> driver_;
};

AutogradDriver::AutogradDriver(const std::shared_ptr<rpc_internal::WorkerRuntime>& runtime,
                               LeafObserver* observer)
    : runtime_(runtime),
      agent_(runtime->agent()),
      executor_(runtime->executor()),
      pass_executor_(std::make_shared<InlineExecutor>(runtime->executor())),
      clock_(runtime->clock()),
      observer_(observer),
      disposal_(runtime->executor()),
      core_(runtime->id()) {}

std::shared_ptr<AutogradDriver> AutogradDriver::attach(
    const std::shared_ptr<rpc_internal::WorkerRuntime>& runtime, LeafObserver* observer) {
  std::shared_ptr<AutogradDriver> driver(new AutogradDriver(runtime, observer));
  std::weak_ptr<AutogradDriver> weak = driver;
  driver->listener_ = std::make_shared<Listener>(weak);
  driver->agent_.set_post_handler(rpc_internal::Topic::kAutograd,
                                  [weak](WorkerId from, Frame frame) {
                                    if (auto self = weak.lock())
                                      self->on_post(from, std::move(frame));
                                  });
  driver->agent_.add_gone_listener([weak](WorkerId peer, const absl::Status&, bool) {
    if (auto self = weak.lock()) self->on_gone(peer);
  });
  return driver;
}

absl::StatusOr<std::shared_ptr<AutogradDriver>> AutogradDriver::of(RpcRuntime& runtime) {
  auto* worker = dynamic_cast<rpc_internal::WorkerRuntime*>(&runtime);
  auto* driver = worker == nullptr ? nullptr : dynamic_cast<AutogradDriver*>(worker->autograd());
  if (driver == nullptr) {
    return with_ran(absl::FailedPreconditionError(absl::StrCat(
                        "worker '", runtime.name(), "' was started without distributed autograd")),
                    Ran::kNo);
  }
  return driver->shared_from_this();
}

absl::Status AutogradDriver::here(absl::Status status) const {
  return status.ok() ? status : raised_at(std::move(status), agent_.self().name);
}

// ---- stepping the core

bool AutogradDriver::step(Event event, On thread, Start* start) {
  Outbox outbox;
  {
    AutogradActions actions;
    MutexLock lock(mutex_);
    if (stopped_) return false;
    event(core_, actions);
    // Under the same lock: the actions of one event must not mix with those of another.
    act(actions, start, outbox);
  }
  WEFT_FAIL_POINT("autograd.decided");
  deliver(std::move(outbox), thread);
  return true;
}

// Performs the actions of the core, with one overload for each kind.
class AutogradDriver::Performer {
 public:
  Performer(AutogradDriver& driver, Start* start, Outbox& outbox)
      : driver_(driver), start_(start), outbox_(outbox) {}

  void operator()(Send& send) ABSL_EXCLUSIVE_LOCKS_REQUIRED(driver_.mutex_) {
    driver_.hand_out(std::move(send), outbox_);
  }
  void operator()(EngageLocal& engage) ABSL_EXCLUSIVE_LOCKS_REQUIRED(driver_.mutex_) {
    driver_.engage(engage, start_);
  }
  void operator()(FeedRoots& roots) ABSL_EXCLUSIVE_LOCKS_REQUIRED(driver_.mutex_) {
    if (LocalPass* const pass = find(roots.pass)) pass->feed_roots();
  }
  void operator()(Feed& feed) ABSL_EXCLUSIVE_LOCKS_REQUIRED(driver_.mutex_) {
    if (LocalPass* const pass = find(feed.pass)) pass->feed(std::move(feed.entries));
  }
  void operator()(Discover& discover) ABSL_EXCLUSIVE_LOCKS_REQUIRED(driver_.mutex_) {
    LocalPass* const pass = find(discover.pass);
    if (pass != nullptr) pass->discover(discover.from_roots, std::move(discover.sources));
  }
  void operator()(CancelSends& cancel) ABSL_EXCLUSIVE_LOCKS_REQUIRED(driver_.mutex_) {
    if (LocalPass* const pass = find(cancel.pass)) pass->cancel_sends(std::move(cancel.sources));
  }
  void operator()(StopLocal& stop) ABSL_EXCLUSIVE_LOCKS_REQUIRED(driver_.mutex_) {
    if (LocalPass* const pass = find(stop.pass)) pass->stop();
  }
  void operator()(StageMerge& merge) ABSL_EXCLUSIVE_LOCKS_REQUIRED(driver_.mutex_) {
    driver_.merge(merge, outbox_);
  }
  void operator()(DropStage& drop) ABSL_EXCLUSIVE_LOCKS_REQUIRED(driver_.mutex_) {
    driver_.drop_pass(drop.pass, outbox_);
  }
  void operator()(CompleteBackward& complete) ABSL_EXCLUSIVE_LOCKS_REQUIRED(driver_.mutex_) {
    const auto waiting = driver_.waiting_.find(complete.pass);
    if (waiting == driver_.waiting_.end()) return;
    outbox_.ended.emplace_back(std::move(waiting->second), std::move(complete.outcome));
    driver_.waiting_.erase(waiting);
  }
  void operator()(ArmDeadline& deadline) ABSL_EXCLUSIVE_LOCKS_REQUIRED(driver_.mutex_) {
    driver_.arm(deadline.pass, deadline.after);
  }
  void operator()(CancelDeadline& deadline) ABSL_EXCLUSIVE_LOCKS_REQUIRED(driver_.mutex_) {
    driver_.disarm(deadline.pass);
  }
  void operator()(DropContext& drop) ABSL_EXCLUSIVE_LOCKS_REQUIRED(driver_.mutex_) {
    driver_.drop_context(drop.context, outbox_);
  }

 private:
  // Null: the pass is not engaged here.
  LocalPass* find(const PassId& id) ABSL_EXCLUSIVE_LOCKS_REQUIRED(driver_.mutex_) {
    const auto found = driver_.passes_.find(id);
    return found == driver_.passes_.end() ? nullptr : found->second.get();
  }

  AutogradDriver& driver_;
  Start* const start_;
  Outbox& outbox_;
};

void AutogradDriver::act(AutogradActions& actions, Start* start, Outbox& outbox) {
  Performer performer(*this, start, outbox);
  for (AutogradAction& action : actions) std::visit(performer, action);
}

void AutogradDriver::engage(EngageLocal& action, Start* start) {
  LocalPass::Setup setup;
  setup.pass = action.pass;
  setup.retain_graph = action.retain_graph;
  setup.observer = observer_;
  if (start != nullptr) {
    setup.roots = std::move(start->roots);
    setup.caller = std::move(start->caller);
    setup.executor = std::move(start->executor);
  }
  if (setup.executor == nullptr) setup.executor = pass_executor_;
  const Context& context = contexts_[action.pass.context];
  setup.sends.reserve(action.sources.size());
  for (const SendId& source : action.sources) setup.sends.push_back(context.sends.at(source));
  auto pass = std::make_shared<LocalPass>(std::move(setup), runtime_, listener_);
  pass->engage();
  passes_.emplace(action.pass, std::move(pass));
  WEFT_FAIL_POINT("autograd.pass.engaged");
}

// Graphs and send records go into the outbox: their destructors may run user code, so they must run
// without the lock.
void AutogradDriver::merge(const StageMerge& action, Outbox& outbox) {
  auto found = passes_.find(action.pass);
  if (found == passes_.end()) return;
  Context& context = contexts_[action.pass.context];
  found->second->take_leaves([gradients = context.gradients](std::vector<LeafGradient> leaves) {
    gradients->add(std::move(leaves));
  });
  for (const SendId& spent : action.spent) {
    auto record = context.sends.find(spent);
    if (record == context.sends.end()) continue;
    outbox.dropped.push_back(std::make_shared<SendRecord>(std::move(record->second)));
    context.sends.erase(record);
  }
  outbox.dropped.push_back(std::move(found->second));
  passes_.erase(found);
  WEFT_FAIL_POINT("autograd.pass.merged");
}

void AutogradDriver::drop_pass(const PassId& pass, Outbox& outbox) {
  auto found = passes_.find(pass);
  if (found == passes_.end()) return;
  found->second->stop();
  outbox.dropped.push_back(std::move(found->second));
  passes_.erase(found);
}

void AutogradDriver::drop_context(const ContextId& context, Outbox& outbox) {
  auto found = contexts_.find(context);
  if (found == contexts_.end()) return;
  for (std::shared_ptr<void>& kept : found->second.kept) outbox.kept.push_back(std::move(kept));
  found->second.kept.clear();
  // Destroyed later, without the lock: gradients and graphs may run user code.
  outbox.dropped.push_back(std::make_shared<Context>(std::move(found->second)));
  contexts_.erase(found);
  WEFT_FAIL_POINT("autograd.context.dropped");
}

// ---- deadlines

TimerId AutogradDriver::call_at(TimePoint when,
                                absl::AnyInvocable<void(AutogradDriver&)> callback) {
  return clock_.call_at(when, [weak = weak_from_this(), callback = std::move(callback)]() mutable {
    const auto self = weak.lock();
    if (self == nullptr) return;
    {
      MutexLock lock(self->mutex_);
      if (self->stopped_) return;
      ++self->in_callbacks_;  // stop() waits until this is zero
    }
    callback(*self);
    MutexLock lock(self->mutex_);
    --self->in_callbacks_;
    self->callback_ended_.notify_all();
  });
}

void AutogradDriver::arm(const PassId& pass, absl::Duration after) {
  disarm(pass);
  const uint64_t number = ++last_timer_;
  // At least 1 us: a Timeout of zero would mean "no limit".
  const TimePoint deadline =
      Timeout(std::max(after, absl::Microseconds(1))).deadline_from(clock_.now());
  if (deadline == kNever) return;
  const TimerId id = call_at(
      deadline, [pass, number](AutogradDriver& driver) { driver.on_deadline(pass, number); });
  timers_.emplace(pass, Timer{id, deadline, number});
}

void AutogradDriver::disarm(const PassId& pass) {
  auto found = timers_.find(pass);
  if (found == timers_.end()) return;
  clock_.cancel(found->second.id);
  timers_.erase(found);
}

void AutogradDriver::on_deadline(const PassId& pass, uint64_t timer) {
  step([&](ContextCore& core, AutogradActions& out) ABSL_NO_THREAD_SAFETY_ANALYSIS {
    auto found = timers_.find(pass);
    // The pass may have ended, or may have a new timer, after this one fired.
    if (found == timers_.end() || found->second.number != timer) return;
    timers_.erase(found);
    core.on_deadline(pass, out);
  });
}

// The core does not know the time. So the driver writes into the header how much time is left.
void AutogradDriver::set_budget(Send& send) {
  PassHeader* header = header_of(send.message);
  if (header == nullptr) return;
  auto found = timers_.find(header->pass);
  if (found == timers_.end()) return;
  header->budget =
      std::max(absl::FromChrono(found->second.deadline - clock_.now()), absl::Microseconds(1));
}

// ---- messages to other workers

void AutogradDriver::hand_out(Send send, Outbox& outbox) {
  if (!may_piggyback(send.message)) {
    set_budget(send);
    outbox.batches.push_back(piggybacked_.batch(send.to, std::move(send.message)));
    return;
  }
  piggybacked_.defer(send.to, std::move(send.message));
  if (piggyback_timer_) return;
  // Until the timer has fired, this worker counts as busy, so that the group is not quiescent. This
  // holds even if the deferred messages were piggybacked before.
  agent_.hold_work();
  piggyback_timer_ = call_at(clock_.now() + kPiggybackWait,
                             [](AutogradDriver& driver) { driver.on_piggybacked_due(); });
}

void AutogradDriver::on_piggybacked_due() {
  Outbox outbox;
  {
    MutexLock lock(mutex_);
    if (!piggyback_timer_) return;  // stop() came first and has released the work
    piggyback_timer_.reset();
    outbox.batches = piggybacked_.take_all();
  }
  deliver(std::move(outbox), On::kAnyThread);
  agent_.release_work();
}

void AutogradDriver::post(PiggybackQueue::Batch batch) {
  const PassId* about = pass_of(batch.message);
  const std::optional<PassId> pass = about == nullptr ? std::nullopt : std::optional(*about);
  absl::StatusOr<Frame> frame = to_frame(std::move(batch.message), batch.piggybacked);
  if (frame.ok()) {
    if (absl::Status size = agent_.check_size(*frame); !size.ok()) frame = std::move(size);
  }
  if (frame.ok()) {
    // The result is not needed: if the receiver is dead, the gone listener tells the core.
    agent_.post(batch.to, rpc_internal::Topic::kAutograd, *std::move(frame));
    return;
  }
  // The frame could not be made. The piggybacked messages go alone, and the pass fails.
  for (AutogradMessage& each : batch.piggybacked) {
    post({batch.to, std::move(each), {}});
  }
  if (pass) fail_pass(*pass, std::move(frame).status());
}

void AutogradDriver::deliver(Outbox outbox, On thread) {
  for (PiggybackQueue::Batch& batch : outbox.batches) post(std::move(batch));
  for (auto& [promise, outcome] : outbox.ended) {
    if (outcome.status.ok()) {
      promise.set_value();
    } else {
      promise.set_error(describe(outcome));
    }
  }
  if (thread == On::kAnyThread && !outbox.dropped.empty()) {
    disposal_.destroy(std::move(outbox.dropped));
  }
  if (!outbox.kept.empty()) executor_.schedule([kept = std::move(outbox.kept)] {});
}

// ---- messages and events from other workers

void AutogradDriver::on_post(WorkerId from, Frame frame) {
  absl::StatusOr<AutogradBatch> batch = from_frame(frame);
  if (!batch.ok()) {
    // The message is lost. Without a suspicion, its pass would wait until the deadline.
    agent_.suspect(from, absl::UnavailableError(absl::StrCat("broke the autograd protocol: ",
                                                             batch.status().message())));
    return;
  }
  WEFT_FAIL_POINT("autograd.arrived");
  step([&](ContextCore& core, AutogradActions& out) {
    for (AutogradMessage& each : batch->piggybacked) {
      core.on_message(from, std::move(each), out);
    }
    core.on_message(from, std::move(batch->message), out);
  });
}

void AutogradDriver::on_gone(WorkerId peer) {
  step([&](ContextCore& core, AutogradActions& out) { core.on_peer_dead(peer, out); });
}

void AutogradDriver::fail_pass(const PassId& pass, absl::Status status) {
  step([&](ContextCore& core, AutogradActions& out) {
    core.on_local_failure(pass, {.status = std::move(status)}, out);
  });
}

// Makes the error for the caller of backward(). It names the node that failed, and the worker.
absl::Status AutogradDriver::describe(const PassFailure& failure) const {
  const WorkerId at = failure.died.valid() ? failure.died : failure.worker;
  const std::string name = agent_.name_of(at);
  std::string where = "backward failed";
  if (!failure.node.empty()) absl::StrAppend(&where, " in node '", failure.node, "'");
  if (failure.died.valid()) {
    absl::StrAppend(&where, " because worker '", name, "' died: ");
  } else {
    absl::StrAppend(&where, " on worker '", name, "': ");
  }
  return with_ran(raised_at(prepend(where, failure.status), name), Ran::kYes);
}

// ---- the end

void AutogradDriver::stop() {
  Outbox outbox;
  {
    MutexLock lock(mutex_);
    if (std::exchange(stopped_, true)) return;
    while (!timers_.empty()) disarm(PassId(timers_.begin()->first));
    while (!passes_.empty()) drop_pass(PassId(passes_.begin()->first), outbox);
    while (!contexts_.empty()) drop_context(ContextId(contexts_.begin()->first), outbox);
    for (auto& [pass, promise] : waiting_) {
      PassFailure failure{.status = absl::CancelledError("this worker has shut down"),
                          .worker = agent_.self().id};
      outbox.ended.emplace_back(std::move(promise), std::move(failure));
    }
    waiting_.clear();
    outbox.batches = piggybacked_.take_all();
    if (piggyback_timer_) {
      clock_.cancel(*piggyback_timer_);
      piggyback_timer_.reset();
      agent_.release_work();
    }
  }
  deliver(std::move(outbox), On::kAnyThread);
  MutexLock lock(mutex_);
  while (in_callbacks_ > 0) callback_ended_.wait(mutex_);
}

}  // namespace weft::dist_autograd_internal
