// Records what each thread works for: a worker, an autograd context, a call chain, a deadline.
//
// Handlers, continuations and local backward passes set this scope. So does `WorkerScope` in
// programs with several workers. Calls read it. Weft has other thread-local state, but that only
// says which kind of thread this is (async/executor.h, async/serving_threads.h). Settings of
// LibTorch, such as grad mode, are not part of the scope: calls and continuations do not carry
// them.
//
// Thread safety: each thread sees its own scope.
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

// The callee's view of a running call. A handler may take `CallContext&` as its first parameter.
//
// Thread safety: all methods may be called from any thread.
// Lifetime: until the handler has returned. If it returns a future, until the future completes.
class CallContext : public std::enable_shared_from_this<CallContext> {
 public:
  CallContext(Clock& clock, WorkerId caller, std::string caller_name, TimePoint deadline,
              std::string caller_role = {})
      : clock_(clock),
        caller_(caller),
        caller_name_(std::move(caller_name)),
        caller_role_(std::move(caller_role)),
        deadline_(deadline) {}
  CallContext(const CallContext&) = delete;
  CallContext& operator=(const CallContext&) = delete;

  WorkerId caller() const { return caller_; }
  const std::string& caller_name() const { return caller_name_; }
  // The role of the caller, which may be this worker. docs/security.md says when it is proven.
  const std::string& caller_role() const { return caller_role_; }
  // kNever if the caller waits without limit.
  TimePoint deadline() const { return deadline_; }
  // True once no caller waits for the result: it cancelled, it died, or its deadline has passed.
  bool cancelled() const {
    if (cancelled_.load(std::memory_order_acquire)) return true;
    return deadline_ != kNever && clock_.now() >= deadline_;
  }

  // Runs `hook` when the call is cancelled or its deadline passes. If that has happened already,
  // the hook may run inside this method. It must be short and must not block. Returns a number for
  // `forget`, or 0 if the hook has run here.
  uint64_t on_cancel(Executor::Task hook) ABSL_LOCKS_EXCLUDED(mutex_);
  // The same, but the deadline does not run the hook. For work that watches the deadline itself.
  uint64_t on_explicit_cancel(Executor::Task hook) ABSL_LOCKS_EXCLUDED(mutex_);
  void forget(uint64_t hook) ABSL_LOCKS_EXCLUDED(mutex_);
  void cancel() ABSL_LOCKS_EXCLUDED(mutex_);  // idempotent

 private:
  struct Hook {
    Executor::Task run;
    bool at_deadline = false;
  };

  uint64_t add(Executor::Task hook, bool at_deadline) ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);
  void pass_deadline() ABSL_LOCKS_EXCLUDED(mutex_);

  Clock& clock_;  // the worker's; it outlives the worker's calls
  const WorkerId caller_;
  const std::string caller_name_;
  const std::string caller_role_;
  const TimePoint deadline_;
  std::atomic<bool> cancelled_{false};
  Mutex mutex_;
  uint64_t next_hook_ ABSL_GUARDED_BY(mutex_) = 1;
  bool timer_armed_ ABSL_GUARDED_BY(mutex_) = false;
  bool deadline_passed_ ABSL_GUARDED_BY(mutex_) = false;  // the timer has fired
  std::map<uint64_t, Hook> hooks_ ABSL_GUARDED_BY(mutex_);
};

struct CallScope {
  std::shared_ptr<RpcRuntime> runtime;  // shared: a continuation may outlive the Worker object
  ContextId context;                    // invalid: no distributed autograd context
  ChainId chain;                        // invalid: outside any handler
  uint32_t depth = 0;                   // handlers above this one in the call chain, plus one
  // The calls of the call chain that are, or were, inside an object of a serial class; the newest
  // kMostHeld of them. A ChainId names each: its caller and its number. Nested calls share the
  // vector. Null: there are none.
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

// Returns a function that calls `f` in the scope of this thread. For threads that the user starts.
template <class F>
auto bind_scope(F f) {
  return [scope = CallScope::current(), f = std::move(f)](auto&&... arguments) mutable {
    CallScopeGuard guard(scope);
    return f(std::forward<decltype(arguments)>(arguments)...);
  };
}

namespace rpc_internal {

// Returns the worker that a verb uses if it names none: the one of the scope, else the only live
// worker of this process. FailedPrecondition: this process has no live worker, or several.
absl::StatusOr<std::shared_ptr<RpcRuntime>> current_runtime();
// From now on, a continuation runs in the scope of the thread that attached it. Call it before any
// handler runs.
void let_futures_carry_scopes();
void add_live_runtime(const std::shared_ptr<RpcRuntime>& runtime);
void remove_live_runtime(const RpcRuntime* runtime);

}  // namespace rpc_internal
}  // namespace weft
