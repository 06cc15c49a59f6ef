// A member of the group: joins it, serves its peers' calls, and leaves it in good order.
//
//   weft::Worker worker = weft::Worker::join(weft::WorkerOptions::from_env());
//   ... weft::rpc_sync("worker1", add, a, b) ...
//   worker.shutdown();
//
// Several workers may live in one process; WorkerScope or `to` then choose the one that calls.
//
// Thread safety: all methods may be called from any thread, but for moving and destroying.
// Lifetime: destroying a worker that was not shut down leaves the group without waiting for it, but
// for a second at most for its own handlers: those that still run are left behind with all that
// they use.
// Blocking: join, serve, shutdown.
// Errors: RpcError. After shutdown to, serve and shutdown are FailedPrecondition; calls by a kept
// Destination are Cancelled, not executed.
#pragma once

#include <memory>
#include <string>
#include <string_view>
#include <vector>

#include "weft/async/future.h"
#include "weft/rpc/destination.h"
#include "weft/rpc/rendezvous/worker_info.h"
#include "weft/rpc/session/call_scope.h"
#include "weft/worker/worker_options.h"

namespace weft {

struct ShutdownOptions {
  // From when the last live worker has entered shutdown; unset: WorkerOptions::shutdown_timeout.
  // The shortest that any worker asks for holds for all.
  Timeout timeout = {};
  // False: leaves at once. The others' calls to this worker fail with Unavailable.
  bool graceful = true;
};

// Gauges for people, and for tests that look for leaks.
struct DebugInfo {
  AgentInfo agent;
  size_t executor_threads = 0;
  size_t owned_values = 0;        // remote objects that live here
  size_t forks = 0;               // references to them on other workers, or on the way there
  size_t references = 0;          // held here, to values elsewhere
  size_t pending_references = 0;  // of those: not confirmed by the owner
  size_t contexts = 0;            // of distributed autograd
  size_t passes = 0;              // backward passes that run
  size_t recorded_sends = 0;      // transfers of tensors that a backward pass may need
  size_t leases = 0;              // workers that this one exchanges heartbeats with
};

class Worker {
 public:
  // Joins the group. In a static group it returns when every rank is known. A joiner, that is a
  // worker of a dynamic group or a rank that was started again, has joined when every member that
  // lives has welcomed it. Changes the whole process: LibTorch computes on one thread
  // (at::set_num_threads) unless OMP_NUM_THREADS is set; with gRPC, malloc keeps what is freed, and
  // in release builds abseil's deadlock detection is off.
  // Errors: InvalidArgument (an option, a registration); ResourceExhausted (the system refuses a
  // thread, and which); those of the store, and of the address to
  // listen on (Unavailable, DeadlineExceeded and others). In a static group: what join_static_group
  // says (a missing rank is named). In a dynamic one: what join_dynamic_group says (AlreadyExists:
  // a worker of that name lives). Of a joiner besides: PermissionDenied (a member refuses it, and
  // says why); DeadlineExceeded or Unavailable (a member does not answer it, or it was declared
  // dead meanwhile).
  static Worker join(WorkerOptions options);

  Worker(Worker&&) noexcept;
  Worker& operator=(Worker&&) noexcept;
  ~Worker();

  WorkerId id() const;
  const std::string& name() const;
  // All members, this one included, by rank; of each the newest incarnation, dead ones too.
  std::vector<WorkerInfo> workers() const;
  DebugInfo debug_info() const;
  // OK while this worker is a member. Unavailable: the others hold it for dead, and who declared it
  // so; all its calls fail, and the process may join again as a new incarnation.
  absl::Status standing() const;

  // For the verbs: rpc_sync(worker.to("worker1"), ...).
  Destination to(std::string_view worker, CallOptions options = {}) const;
  void set_default_timeout(Timeout timeout);

  // A live worker of this name: at once, or when one joins (a restarted one is a new incarnation
  // with the old name). Errors: DeadlineExceeded; zero waits without limit.
  WorkerInfo wait_for(std::string_view worker, Timeout timeout) const;
  Future<WorkerInfo> wait_for_async(std::string_view worker, Timeout timeout) const;

  // Returns when every other live worker has entered shutdown or left. In a dynamic group: when
  // this worker's shutdown has begun.
  void serve();

  // Waits until the whole group is quiet: every live worker has entered, no call runs, nested ones
  // and continuations included, no reference is on its way. Then leaves. Not from a handler.
  // In a dynamic group it waits for this worker alone: until it has no calls in either direction,
  // and nobody refers to its values.
  // Errors: DeadlineExceeded naming the workers that were not quiet in time and what each was at
  // (the oldest call that it serves or waits for), or who refers to what.
  // This worker has left even then; handlers that still run a second later are left behind with all
  // that they use.
  void shutdown(ShutdownOptions options = {});
  void shutdown(Timeout timeout) { shutdown(ShutdownOptions{.timeout = timeout}); }
  // Without waiting. The future has no executor of its own; this object must live until it is
  // complete, or the worker leaves at once.
  Future<void> shutdown_async(ShutdownOptions options = {});

  // What the rooms above rpc are given. Keeps everything that a call needs.
  const std::shared_ptr<RpcRuntime>& runtime() const { return runtime_; }

 private:
  class Stack;  // one of each part; shared with the thread that ends it and with open handles

  explicit Worker(std::shared_ptr<Stack> stack);
  void leave() noexcept;

  std::shared_ptr<Stack> stack_;
  std::shared_ptr<RpcRuntime> runtime_;
};

// Makes `worker` the one that this thread's verbs mean, for its own lifetime.
class WorkerScope {
 public:
  explicit WorkerScope(const Worker& worker) : guard_(scope_of(worker)) {}

 private:
  static CallScope scope_of(const Worker& worker) {
    CallScope scope;
    scope.runtime = worker.runtime();
    return scope;
  }
  CallScopeGuard guard_;
};

}  // namespace weft
