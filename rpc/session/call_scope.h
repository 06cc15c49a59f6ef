// The scope that a thread works in: the current worker, autograd context, call chain and deadline.
//
// Handlers, continuations and local backward passes set it, and so does `WorkerScope` in programs
// with several workers. Calls read it. The other thread-local state of Weft says which thread this
// is (async/executor.h, async/serving_threads.h), not what it works for. LibTorch's own settings,
// grad mode among them, are not part of it: neither calls nor continuations carry them.
//
// Thread safety: each thread sees its own.
#pragma once

#include <atomic>
#include <functional>
#include <map>
#include <memory>
#include <string>
#include <vector>

#include "absl/status/statusor.h"
#include "weft/async/executor.h"
#include "weft/base/clock.h"
#include "weft/base/ids.h"
#include "weft/base/mutex.h"

namespace weft {

class RpcRuntime;

// The callee's view of a running call; a handler may take `CallContext&` as its first parameter.
//
// Thread safety: all methods may be called from any thread.
// Lifetime: as long as the handler, and until the returned future completes.
class CallContext : public std::enable_shared_from_this<CallContext> {
 public:
  CallContext(Clock& clock, WorkerId caller, std::string caller_name, TimePoint deadline)
      : clock_(clock), caller_(caller), caller_name_(std::move(caller_name)), deadline_(deadline) {}
  CallContext(const CallContext&) = delete;
  CallContext& operator=(const CallContext&) = delete;

  WorkerId caller() const { return caller_; }
  const std::string& caller_name() const { return caller_name_; }
  // kNever if the caller waits without limit.
  TimePoint deadline() const { return deadline_; }
  // True once nobody waits for the result: the caller cancelled, died, or its deadline passed.
  bool cancelled() const {
    if (cancelled_.load(std::memory_order_acquire)) return true;
    return deadline_ != kNever && clock_.now() >= deadline_;
  }

  // Runs `hook` when the call is cancelled or its deadline passes (here, if that has happened).
  // Short, must not block. Returns a number to `forget` it by; 0 if it ran here.
  uint64_t on_cancel(Executor::Task hook) ABSL_LOCKS_EXCLUDED(mutex_);
  // The same, but the deadline alone does not run it: for work that has the deadline itself.
  uint64_t on_explicit_cancel(Executor::Task hook) ABSL_LOCKS_EXCLUDED(mutex_);
  void forget(uint64_t hook) ABSL_LOCKS_EXCLUDED(mutex_);
  void cancel() ABSL_LOCKS_EXCLUDED(mutex_);  // idempotent

 private:
  Clock& clock_;  // the worker's; outlives its calls
  const WorkerId caller_;
  const std::string caller_name_;
  const TimePoint deadline_;
  std::atomic<bool> cancelled_{false};
  Mutex mutex_;
  uint64_t next_hook_ ABSL_GUARDED_BY(mutex_) = 1;
  bool timer_armed_ ABSL_GUARDED_BY(mutex_) = false;
  std::map<uint64_t, Executor::Task> hooks_ ABSL_GUARDED_BY(mutex_);
};

struct CallScope {
  std::shared_ptr<RpcRuntime> runtime;  // shared: a continuation may outlive the Worker object
  ContextId context;                    // invalid: no distributed autograd context
  ChainId chain;                        // invalid: outside any handler
  uint32_t depth = 0;                   // handlers above this one in the chain, plus one
  // The newest kMostHeld calls of the chain that are, or were, inside a serial object, named like a
  // chain by who made them. Shared with the calls below; null: none.
  static constexpr size_t kMostHeld = 128;
  std::shared_ptr<const std::vector<ChainId>> held;
  TimePoint deadline = kNever;                // of the handler that runs
  std::shared_ptr<CallContext> call_context;  // of the handler that runs; shared with the agent

  // This thread's scope.
  static CallScope& current();
};

// Replaces this thread's scope for its own lifetime.
class CallScopeGuard {
 public:
  explicit CallScopeGuard(CallScope scope);
  ~CallScopeGuard();
  CallScopeGuard(const CallScopeGuard&) = delete;
  CallScopeGuard& operator=(const CallScopeGuard&) = delete;

 private:
  CallScope previous_;
};

// Carries this thread's scope to wherever `f` is called: for threads that the user starts.
template <class F>
auto bind_scope(F f) {
  return [scope = CallScope::current(), f = std::move(f)](auto&&... arguments) mutable {
    CallScopeGuard guard(scope);
    return f(std::forward<decltype(arguments)>(arguments)...);
  };
}

namespace rpc_internal {

// The worker that a verb without a worker means: the scope's, else the only live one of this
// process. FailedPrecondition: none, or several.
absl::StatusOr<std::shared_ptr<RpcRuntime>> current_runtime();
// From now on continuations run in the scope of whoever made them. Comes before any handler runs.
void let_futures_carry_scopes();
void add_live_runtime(const std::shared_ptr<RpcRuntime>& runtime);
void remove_live_runtime(const RpcRuntime* runtime);

}  // namespace rpc_internal
}  // namespace weft
