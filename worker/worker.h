// Joins this process to the group as a worker, serves the calls of its peers, and leaves the group
// in order.
//
//   weft::Worker worker = weft::Worker::join(weft::WorkerOptions::from_env());
//   ... weft::rpc_sync("worker1", add, a, b) ...
//   worker.shutdown();
//
// Several workers may be in one process. WorkerScope or `to` then choose the one that calls.
//
// Thread safety: all methods may be called from any thread, except moving and destroying.
// Lifetime: a worker that is destroyed without shutdown leaves the group at once. The destructor
// waits at most one second for this worker's own handlers. Handlers that still run then are left
// behind, with everything that they use.
// Blocking: join, wait_for, wait_until_gone, serve, shutdown, and the destructor as above.
// Errors: RpcError. After shutdown, `to`, wait_for, wait_until_gone, member_events, serve and
// shutdown fail with FailedPrecondition. Calls by a Destination that was made before are Cancelled
// and not executed.
// Protocol: docs/membership.md; docs/launch.md, "Joining".
#pragma once

#include <memory>
#include <string>
#include <string_view>
#include <vector>

#include "weft/async/future.h"
#include "weft/rpc/destination.h"
#include "weft/rpc/membership/member_events.h"
#include "weft/rpc/rendezvous/worker_info.h"
#include "weft/rpc/session/call_scope.h"
#include "weft/worker/worker_options.h"

namespace weft {

struct ShutdownOptions {
  // Counts from when the last live worker has entered shutdown. If it is not set:
  // WorkerOptions::shutdown_timeout. The shortest timeout of any worker holds for all.
  Timeout timeout = {};
  // False: the worker leaves at once, and the others' calls to it fail with Unavailable.
  bool graceful = true;
};

// Gauges for people, and for tests that look for leaks.
struct DebugInfo {
  AgentInfo agent;
  size_t executor_threads = 0;
  size_t owned_values = 0;        // remote objects on this worker
  size_t forks = 0;               // references to them, on other workers or on their way
  size_t references = 0;          // on this worker, to values on others
  size_t pending_references = 0;  // those that the owner has not confirmed
  size_t contexts = 0;            // distributed autograd contexts
  size_t passes = 0;              // backward passes that run
  size_t recorded_sends = 0;      // transfers of tensors that a backward pass may need
  size_t leases = 0;              // workers that this one exchanges heartbeats with
};

class Worker {
 public:
  // Joins the group. In a static group it returns when every rank is known. A joiner is a worker of
  // a dynamic group, or a rank that was started again. It has joined when every live member has
  // welcomed it.
  // Changes the whole process: unless OMP_NUM_THREADS is set, LibTorch computes on one thread
  // (at::set_num_threads). With gRPC, malloc keeps freed memory, and in release builds abseil's
  // deadlock detection is off.
  // Errors: InvalidArgument (an option, a registration); ResourceExhausted (the system refuses a
  // thread; the text says which); those of the store, and of the address to listen on (Unavailable,
  // DeadlineExceeded and others).
  // In a static group also: the errors of join_static_group (a missing rank is named).
  // In a dynamic group also: the errors of join_dynamic_group (AlreadyExists: a worker of that name
  // is alive).
  // For a joiner also: PermissionDenied (a member refuses it; the text says why); DeadlineExceeded
  // or Unavailable (a member does not answer, or this worker was declared dead meanwhile).
  static Worker join(WorkerOptions options);

  Worker(Worker&&) noexcept;
  Worker& operator=(Worker&&) noexcept;
  ~Worker();

  WorkerId id() const;
  const std::string& name() const;
  // True if this process took over its rank from an earlier process while the group went on:
  // weft_launch has restarted it, or a pod of Kubernetes was replaced. False if the whole group was
  // restarted.
  bool restarted() const;
  // All members by rank, including this one: the newest incarnation of each, also if it is dead.
  std::vector<WorkerInfo> workers() const;
  DebugInfo debug_info() const;
  // OK while this worker is a member. Unavailable: it was declared dead, and the text says by whom.
  // Then all its calls fail. The process may join again as a new incarnation.
  absl::Status standing() const;

  // The destination of a verb: rpc_sync(worker.to("worker1"), ...).
  Destination to(std::string_view worker, CallOptions options = {}) const;
  void set_default_timeout(Timeout timeout);

  // Returns a live worker of this name, at once or when one joins. A restarted worker is a new
  // incarnation with the old name. DeadlineExceeded: none joined in time. A timeout of zero means
  // no limit.
  WorkerInfo wait_for(std::string_view worker, Timeout timeout) const;
  Future<WorkerInfo> wait_for_async(std::string_view worker, Timeout timeout) const;

  // Returns when the worker of this name has left the group, in order or by being destroyed. If the
  // worker has died, it throws the reason, mostly Unavailable. This concerns the newest incarnation
  // at the time of the call, which may be gone already; a later one with this name does not matter.
  // DeadlineExceeded: it is still there. NotFound: no worker of this name has joined, as far as
  // this worker remembers (the last 1,024 that are gone). InvalidArgument: it is this worker.
  // Cancelled: this worker has left. A timeout of zero means no limit.
  // In a static group, a worker that shuts down in order waits until all others do so too. So do
  // not wait for that here; `serve` does. If this worker itself was declared dead, all others count
  // as dead: see `standing`.
  void wait_until_gone(std::string_view worker, Timeout timeout) const;
  Future<void> wait_until_gone_async(std::string_view worker, Timeout timeout) const;

  // A new stream of the other members and their changes. It begins with the present members.
  MemberEvents member_events() const;

  // Returns when every other live worker has entered shutdown or left. In a dynamic group it
  // returns when this worker's shutdown begins.
  void serve();

  // Waits until the whole group is quiescent, and then leaves. This means that every live worker
  // has entered shutdown, no call runs (nested ones and continuations included), and no reference
  // is on its way. Do not call it from a handler.
  // In a dynamic group it waits only until this worker has no calls in either direction, and no
  // other worker refers to its values.
  // DeadlineExceeded: the text names the workers that were not quiescent in time. It says what each
  // was doing (the oldest call that it serves or waits for), or who refers to what. This worker has
  // left even then. Handlers that still run one second later are left behind, with everything that
  // they use.
  void shutdown(ShutdownOptions options = {});
  void shutdown(Timeout timeout) { shutdown(ShutdownOptions{.timeout = timeout}); }
  // Does not wait. The future has no executor of its own. This object must live until the future is
  // complete. If it is destroyed earlier, the worker leaves at once.
  Future<void> shutdown_async(ShutdownOptions options = {});

  // For the rooms above rpc. The runtime keeps everything alive that a call needs.
  const std::shared_ptr<RpcRuntime>& runtime() const { return runtime_; }

 private:
  class Stack;  // all parts; shared with the runtime and with the thread that stops the worker

  explicit Worker(std::shared_ptr<Stack> stack);
  void leave() noexcept;

  std::shared_ptr<Stack> stack_;
  std::shared_ptr<RpcRuntime> runtime_;
};

// While it lives, the verbs on this thread call from `worker`.
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
