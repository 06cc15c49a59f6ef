#include "weft/dist_autograd/autograd_driver.h"

#include <algorithm>
#include <utility>

#include "absl/strings/str_cat.h"
#include "weft/base/faults/fail_point.h"
#include "weft/base/status.h"
#include "weft/dist_autograd/internal/inline_executor.h"

namespace weft::dist_autograd_internal {

using namespace backward;  // NOLINT: the actions, in the file that carries them out

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
    if (auto driver = driver_.lock()) driver->begin_work();
  }
  void end_work() override {
    if (auto driver = driver_.lock()) driver->end_work();
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

void AutogradDriver::act(AutogradActions& actions, Start* start, Outbox& outbox) {
  const auto with_pass = [this](const PassId& id, auto&& use) ABSL_NO_THREAD_SAFETY_ANALYSIS {
    auto found = passes_.find(id);
    if (found != passes_.end()) use(*found->second);
  };
  for (AutogradAction& action : actions) {
    if (auto* send = std::get_if<Send>(&action)) {
      hand_out(std::move(*send), outbox);
    } else if (auto* engage = std::get_if<EngageLocal>(&action)) {
      this->engage(*engage, start);
    } else if (auto* roots = std::get_if<FeedRoots>(&action)) {
      with_pass(roots->pass, [](LocalPass& pass) { pass.feed_roots(); });
    } else if (auto* feed = std::get_if<Feed>(&action)) {
      with_pass(feed->pass, [&](LocalPass& pass) { pass.feed(std::move(feed->entries)); });
    } else if (auto* discover = std::get_if<Discover>(&action)) {
      with_pass(discover->pass, [&](LocalPass& pass) {
        pass.discover(discover->from_roots, std::move(discover->sources));
      });
    } else if (auto* cancel = std::get_if<CancelSends>(&action)) {
      with_pass(cancel->pass,
                [&](LocalPass& pass) { pass.cancel_sends(std::move(cancel->sources)); });
    } else if (auto* stop = std::get_if<StopLocal>(&action)) {
      with_pass(stop->pass, [](LocalPass& pass) { pass.stop(); });
    } else if (auto* merged = std::get_if<StageMerge>(&action)) {
      merge(*merged, outbox);
    } else if (auto* drop = std::get_if<DropStage>(&action)) {
      drop_pass(drop->pass, outbox);
    } else if (auto* complete = std::get_if<CompleteBackward>(&action)) {
      auto waiting = waiting_.find(complete->pass);
      if (waiting == waiting_.end()) continue;
      outbox.ended.emplace_back(std::move(waiting->second), std::move(complete->outcome));
      waiting_.erase(waiting);
    } else if (auto* timer = std::get_if<ArmDeadline>(&action)) {
      arm(timer->pass, timer->after);
    } else if (auto* timer_end = std::get_if<CancelDeadline>(&action)) {
      disarm(timer_end->pass);
    } else if (auto* context = std::get_if<DropContext>(&action)) {
      drop_context(context->context, outbox);
    }
  }
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
    send_piggybacked(outbox);
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
