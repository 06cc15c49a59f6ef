// Drives distributed autograd on one worker: it records transfers of tensors, keeps contexts and
// their gradients, and runs backward passes.
//
// The driver steps ContextCore under its lock and performs the core's actions. It performs cheap
// local actions under the same lock, so that they keep their order. It sends messages and completes
// futures after it has released the lock.
//
// Thread safety: all methods may be called from any thread. Messages are decoded and queued on the
// thread that reads them. Nodes and hooks run as tasks of the executor, inline on the reading
// thread while they are short (inline_executor.h), or on the thread that waits in backward_here().
// Lifetime: shared by the worker, its contexts and timers. The worker calls stop() before its agent
// stops. Agent, executor and clock must exist until then.
// Errors: as in context_core.h, with this worker's name as the one where they were raised.
// Protocol: docs/backward_protocol.md.
#pragma once

#include <map>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "absl/functional/function_ref.h"
#include "weft/async/future.h"
#include "weft/base/clock.h"
#include "weft/base/mutex.h"
#include "weft/dist_autograd/graph/local_pass.h"
#include "weft/dist_autograd/internal/committed_gradients.h"
#include "weft/dist_autograd/internal/graph_disposal.h"
#include "weft/dist_autograd/internal/piggyback_queue.h"
#include "weft/dist_autograd/passes/context_core.h"
#include "weft/rpc/hooks.h"
#include "weft/rpc/session/agent.h"
#include "weft/rpc/worker_runtime.h"

namespace weft::dist_autograd_internal {

class AutogradDriver final : public AutogradHook,
                             public std::enable_shared_from_this<AutogradDriver> {
 public:
  struct PassOptions {
    BackwardMode mode = BackwardMode::kDefault;
    bool retain_graph = false;
    Timeout timeout;  // not set: the runtime's default
  };
  // The number of objects that this worker holds; all zero once every context is released.
  struct Gauges {
    size_t contexts = 0;
    size_t passes = 0;
    size_t sends = 0;
    size_t timers = 0;
  };

  // Makes a driver and installs it in the runtime's agent. Call it before the agent starts, and
  // give the driver to WorkerRuntime::set_hooks. The observer may be null.
  static std::shared_ptr<AutogradDriver> attach(
      const std::shared_ptr<rpc_internal::WorkerRuntime>& runtime,
      LeafObserver* observer = nullptr);
  // The driver of the runtime's worker. FailedPrecondition: it has no distributed autograd.
  static absl::StatusOr<std::shared_ptr<AutogradDriver>> of(RpcRuntime& runtime);

  // Fails every running pass with Cancelled, and drops all contexts. Afterwards the driver does
  // nothing any more. Blocks until no timer callback of this driver runs. Idempotent.
  void stop() ABSL_LOCKS_EXCLUDED(mutex_);

  // ---- contexts
  absl::StatusOr<ContextId> create_context() ABSL_LOCKS_EXCLUDED(mutex_);
  void release(const ContextId& context) ABSL_LOCKS_EXCLUDED(mutex_);
  // The future completes when the pass has ended. Cancelling it aborts the pass.
  Future<void> backward(const ContextId& context, std::vector<at::Tensor> roots,
                        const PassOptions& options) ABSL_LOCKS_EXCLUDED(mutex_);
  // Blocks until the pass has ended, and runs this worker's part of it on the calling thread.
  absl::Status backward_here(const ContextId& context, std::vector<at::Tensor> roots,
                             const PassOptions& options) ABSL_LOCKS_EXCLUDED(mutex_);
  absl::StatusOr<std::vector<LeafGradient>> gradients(const ContextId& context)
      ABSL_LOCKS_EXCLUDED(mutex_);
  // Undefined if the variable has none.
  absl::StatusOr<at::Tensor> gradient(const ContextId& context, const at::Tensor& variable)
      ABSL_LOCKS_EXCLUDED(mutex_);
  // Keeps `resource` until the context is released here, then destroys it on the executor.
  absl::Status keep_with(const ContextId& context, std::shared_ptr<void> resource)
      ABSL_LOCKS_EXCLUDED(mutex_);
  ContextCore::PassStanding standing(const PassId& pass) const ABSL_LOCKS_EXCLUDED(mutex_);
  absl::Status check_settled(const ContextId& context) const ABSL_LOCKS_EXCLUDED(mutex_);
  Gauges gauges() const ABSL_LOCKS_EXCLUDED(mutex_);
  // Appends the workers with which this one shares contexts.
  void append_ties(std::vector<WorkerId>& workers) const ABSL_LOCKS_EXCLUDED(mutex_);

  // AutogradHook.
  absl::StatusOr<std::string> record_send(ContextId context, WorkerId to,
                                          const std::vector<at::Tensor>& tensors) override
      ABSL_LOCKS_EXCLUDED(mutex_);
  absl::StatusOr<ContextId> record_receive(WorkerId from, std::string_view attachment,
                                           std::vector<at::Tensor>& tensors) override
      ABSL_LOCKS_EXCLUDED(mutex_);

 private:
  class Listener;
  struct Context {
    std::map<SendId, SendRecord> sends;
    // Shared with readers, which sum the gradients outside the driver's lock.
    std::shared_ptr<CommittedGradients> gradients = std::make_shared<CommittedGradients>();
    std::vector<std::shared_ptr<void>> kept;  // by keep_with()
  };
  struct Timer {
    TimerId id;
    TimePoint deadline;
    uint64_t number;  // differs if the pass's timer was replaced after it had fired
  };
  // The arguments of a pass that is about to start here.
  struct Start {
    std::vector<at::Tensor> roots;
    std::optional<at::ThreadLocalState> caller;  // as LocalPass::Setup's
    std::shared_ptr<Executor> executor;
  };
  // The work that is left to do once the lock is free.
  struct Outbox {
    std::vector<PiggybackQueue::Batch> batches;
    std::vector<std::pair<Promise<void>, PassFailure>> ended;
    std::vector<std::shared_ptr<void>> dropped;  // graphs and gradients; may destroy user's objects
    std::vector<std::shared_ptr<void>> kept;     // to be destroyed on the executor
  };
  // The thread that steps the core. On a user thread, where user code runs anyway, dropped graphs
  // and gradients are destroyed at once.
  enum class On { kAnyThread, kUserThread };

  AutogradDriver(const std::shared_ptr<rpc_internal::WorkerRuntime>& runtime,
                 LeafObserver* observer);

  // Runs `event(core, actions)` under the lock and performs the actions. Returns false, and runs
  // nothing, after stop().
  using Event = absl::FunctionRef<void(ContextCore& core, AutogradActions& actions)>;
  bool step(Event event, On thread = On::kAnyThread, Start* start = nullptr)
      ABSL_LOCKS_EXCLUDED(mutex_);
  class Performer;
  void act(AutogradActions& actions, Start* start, Outbox& outbox)
      ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);
  void engage(backward::EngageLocal& action, Start* start) ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);
  void merge(const backward::StageMerge& action, Outbox& outbox)
      ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);
  void drop_pass(const PassId& pass, Outbox& outbox) ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);
  void drop_context(const ContextId& context, Outbox& outbox) ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);
  void arm(const PassId& pass, absl::Duration after) ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);
  void disarm(const PassId& pass) ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);
  void set_budget(backward::Send& send) ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);
  // Puts the message into the outbox, with the deferred messages for the same worker. If nobody
  // waits for the message (may_piggyback), defers it instead.
  void hand_out(backward::Send send, Outbox& outbox) ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);
  void deliver(Outbox outbox, On thread) ABSL_LOCKS_EXCLUDED(mutex_);
  Future<void> start(const ContextId& context, Start start, const PassOptions& options,
                     absl::StatusOr<PassId>& pass) ABSL_LOCKS_EXCLUDED(mutex_);

  void on_post(WorkerId from, Frame frame) ABSL_LOCKS_EXCLUDED(mutex_);
  void on_gone(WorkerId peer) ABSL_LOCKS_EXCLUDED(mutex_);
  void on_deadline(const PassId& pass, uint64_t timer) ABSL_LOCKS_EXCLUDED(mutex_);
  void fail_pass(const PassId& pass, absl::Status status) ABSL_LOCKS_EXCLUDED(mutex_);
  void on_piggybacked_due() ABSL_LOCKS_EXCLUDED(mutex_);
  // Runs `callback` on the clock's thread at `when`, but not after stop(), which waits for a
  // callback that runs.
  TimerId call_at(TimePoint when, absl::AnyInvocable<void(AutogradDriver&)> callback);
  void post(PiggybackQueue::Batch batch) ABSL_LOCKS_EXCLUDED(mutex_);
  absl::StatusOr<std::shared_ptr<CommittedGradients>> committed(const ContextId& context)
      ABSL_LOCKS_EXCLUDED(mutex_);
  absl::Status describe(const PassFailure& failure) const;
  absl::Status here(absl::Status status) const;

  const std::weak_ptr<rpc_internal::WorkerRuntime> runtime_;  // weak: this driver is its hook
  rpc_internal::Agent& agent_;
  Executor& executor_;
  const std::shared_ptr<Executor> pass_executor_;  // shared with the passes
  Clock& clock_;
  LeafObserver* const observer_;
  std::shared_ptr<Listener> listener_;  // shared with the passes, their queued work and holds
  GraphDisposal disposal_;

  mutable Mutex mutex_;
  bool stopped_ ABSL_GUARDED_BY(mutex_) = false;
  ContextCore core_ ABSL_GUARDED_BY(mutex_);
  uint64_t last_send_ ABSL_GUARDED_BY(mutex_) = 0;
  uint64_t last_timer_ ABSL_GUARDED_BY(mutex_) = 0;
  std::map<ContextId, Context> contexts_ ABSL_GUARDED_BY(mutex_);
  std::map<PassId, std::shared_ptr<LocalPass>> passes_ ABSL_GUARDED_BY(mutex_);
  std::map<PassId, Timer> timers_ ABSL_GUARDED_BY(mutex_);
  std::map<PassId, Promise<void>> waiting_ ABSL_GUARDED_BY(mutex_);
  PiggybackQueue piggybacked_ ABSL_GUARDED_BY(mutex_);
  std::optional<TimerId> piggyback_timer_ ABSL_GUARDED_BY(mutex_);
  size_t in_callbacks_ ABSL_GUARDED_BY(mutex_) = 0;  // callbacks of call_at() that run now
  CondVar callback_ended_;
};

}  // namespace weft::dist_autograd_internal
