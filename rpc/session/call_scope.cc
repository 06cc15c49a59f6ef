#include "weft/rpc/session/call_scope.h"

#include <algorithm>
#include <utility>

#include "weft/async/future.h"

namespace weft {
namespace {

thread_local CallScope current_scope;

// Makes continuations of futures run in the scope of the thread that attached them.
class CallScopeCarrier final : public ScopeCarrier {
 public:
  Task carry(Task task) override {
    if (current_scope.runtime == nullptr) return task;
    return [scope = current_scope, task = std::move(task)]() mutable {
      CallScopeGuard guard(std::move(scope));
      task();
    };
  }
};

struct LiveRuntimes {
  Mutex mutex;
  std::vector<std::pair<const RpcRuntime*, std::weak_ptr<RpcRuntime>>> list ABSL_GUARDED_BY(mutex);
};

LiveRuntimes& live_runtimes() {
  static auto* live = new LiveRuntimes;  // never freed: workers may stop after static destructors
  return *live;
}

}  // namespace

uint64_t CallContext::on_cancel(Executor::Task hook) {
  bool arm = false;
  uint64_t number = 0;
  {
    MutexLock lock(mutex_);
    if (!cancelled_.load(std::memory_order_acquire) && !deadline_passed_) {
      number = add(std::exchange(hook, nullptr), true);
      // Only a hook needs to hear of the deadline. So the first hook arms the timer, not each call.
      arm = deadline_ != kNever && !std::exchange(timer_armed_, true);
    }
  }
  if (arm) {
    clock_.call_at(deadline_, [self = weak_from_this()] {
      if (auto context = self.lock()) context->pass_deadline();
    });
  }
  if (number == 0) hook();
  return number;
}

uint64_t CallContext::on_explicit_cancel(Executor::Task hook) {
  {
    MutexLock lock(mutex_);
    if (!cancelled_.load(std::memory_order_acquire)) return add(std::move(hook), false);
  }
  hook();
  return 0;
}

uint64_t CallContext::add(Executor::Task hook, bool at_deadline) {
  hooks_.emplace(next_hook_, Hook{std::move(hook), at_deadline});
  return next_hook_++;
}

void CallContext::forget(uint64_t hook) {
  Hook forgotten;  // destroyed outside the lock, like everything the hook owns
  MutexLock lock(mutex_);
  auto found = hooks_.find(hook);
  if (found == hooks_.end()) return;
  forgotten = std::move(found->second);
  hooks_.erase(found);
}

void CallContext::cancel() {
  std::map<uint64_t, Hook> hooks;
  {
    MutexLock lock(mutex_);
    if (cancelled_.exchange(true, std::memory_order_acq_rel)) return;
    hooks.swap(hooks_);
  }
  for (auto& [number, hook] : hooks) hook.run();
}

void CallContext::pass_deadline() {
  std::vector<Executor::Task> due;
  {
    MutexLock lock(mutex_);
    deadline_passed_ = true;
    for (auto& [number, hook] : hooks_) {
      if (hook.at_deadline) due.push_back(std::move(hook.run));
    }
    std::erase_if(hooks_, [](const auto& each) { return each.second.at_deadline; });
  }
  for (Executor::Task& hook : due) hook();
}

CallScope& CallScope::current() { return current_scope; }

CallScopeGuard::CallScopeGuard(CallScope scope)
    : previous_(std::exchange(current_scope, std::move(scope))) {}
CallScopeGuard::~CallScopeGuard() { current_scope = std::move(previous_); }

namespace rpc_internal {

absl::StatusOr<std::shared_ptr<RpcRuntime>> current_runtime() {
  if (current_scope.runtime != nullptr) return current_scope.runtime;
  LiveRuntimes& live = live_runtimes();
  MutexLock lock(live.mutex);
  if (live.list.size() == 1) {
    if (auto runtime = live.list.front().second.lock()) return runtime;
  }
  if (live.list.empty()) {
    return absl::FailedPreconditionError(
        "no worker lives in this process: Worker::join comes first, and after shutdown no call can "
        "be made");
  }
  return absl::FailedPreconditionError(
      absl::StrCat(live.list.size(),
                   " workers live in this process: choose one with WorkerScope or worker.to(...)"));
}

void let_futures_carry_scopes() {
  static auto* carrier = new CallScopeCarrier;  // never freed, like the live runtimes
  ScopeCarrier::install(carrier);
}

void add_live_runtime(const std::shared_ptr<RpcRuntime>& runtime) {
  LiveRuntimes& live = live_runtimes();
  MutexLock lock(live.mutex);
  live.list.emplace_back(runtime.get(), runtime);
}

void remove_live_runtime(const RpcRuntime* runtime) {
  LiveRuntimes& live = live_runtimes();
  MutexLock lock(live.mutex);
  std::erase_if(live.list, [&](const auto& entry) { return entry.first == runtime; });
}

}  // namespace rpc_internal
}  // namespace weft
