// Runs one worker's part of one backward pass: the core's actions feed its local graph on a strand.
//
// It turns actions into calls of LocalGraph, and their results into the events for which the core
// waits. User code runs in the call scope of this worker and the pass's context. It shows final
// gradients to the observer and makes the holds for it.
//
// Thread safety: all methods may be called from any thread, but hold() only by the observer. They
// only queue work, except stop() and take_leaves(). Listener and graph run on the strand, with no
// lock held.
// Lifetime: shared by the driver and the queued tasks. The last of them to go frees the graph.
// Protocol: docs/backward_protocol.md.
#pragma once

#include <atomic>
#include <map>
#include <memory>
#include <optional>
#include <vector>

#include <ATen/ThreadLocalState.h>
#include <ATen/core/Tensor.h>

#include "absl/functional/any_invocable.h"
#include "absl/status/statusor.h"
#include "weft/async/executor.h"
#include "weft/dist_autograd/graph/leaf_observer.h"
#include "weft/dist_autograd/graph/local_graph.h"
#include "weft/dist_autograd/graph/send_record.h"
#include "weft/dist_autograd/passes/pass_actions.h"
#include "weft/rpc/session/call_scope.h"

namespace weft::dist_autograd_internal {

// The gradients of one GradEntry, one per slot in `present`.
struct TensorPayload final : GradientPayload {
  explicit TensorPayload(std::vector<at::Tensor> gradients) : tensors(std::move(gradients)) {}
  std::vector<at::Tensor> tensors;
};

class LocalPass final : public ObservedPass, public std::enable_shared_from_this<LocalPass> {
 public:
  // The strand calls these methods, in the order in which ContextCore needs the events. Any thread
  // may call begin_work, end_work and on_failure. No method may throw.
  class Listener {
   public:
    virtual ~Listener() = default;
    virtual void on_progress(const PassId& pass, LocalProgress progress) = 0;
    virtual void on_discovered(const PassId& pass, std::vector<PeerSends> reached) = 0;
    virtual void on_failure(const PassId& pass, PassFailure failure) = 0;
    virtual void on_hold(const PassId& pass) = 0;
    virtual void on_hold_released(const PassId& pass) = 0;
    // Called around every piece of work, beginning when it is queued, and around every hold.
    virtual void begin_work() = 0;
    virtual void end_work() = 0;
  };
  struct Setup {
    PassId pass;
    bool retain_graph = false;
    std::vector<at::Tensor> roots;  // empty: not the initiator
    // The state of backward()'s thread, if other threads run the pass.
    std::optional<at::ThreadLocalState> caller;
    std::vector<SendRecord> sends;
    LeafObserver* observer = nullptr;
    std::shared_ptr<Executor> executor;  // shared with other passes, or with backward_here()
  };

  LocalPass(Setup setup, std::weak_ptr<RpcRuntime> runtime, std::shared_ptr<Listener> listener);

  void engage();
  void feed_roots();
  void feed(std::vector<GradEntry> entries);
  void discover(bool from_roots, std::vector<SendId> sources);
  void cancel_sends(std::vector<SendId> sources);
  // From now on queued work is skipped. The staged gradients are kept.
  void stop();
  // The pass is committed: gives its gradients to `take`, inside this call if no work is queued.
  void take_leaves(absl::AnyInvocable<void(std::vector<LeafGradient>)> take);

  // ObservedPass.
  ContextId context() const override { return pass_.context; }
  bool failed() const override { return stopped_.load(); }
  PassHold hold() override;

 private:
  class Held;
  enum class Answer { kNone, kProgress, kDiscovered, kHoldReleased };
  // Queues `body`, and reports its result, unless the pass is stopped meanwhile.
  void queue(Answer answer, absl::AnyInvocable<absl::Status()> body);
  void report(Answer answer, absl::Status status);
  absl::Status feed_one(GradEntry& entry);
  void collect(RecvAnswer answer);
  std::vector<PeerGradients> take_outputs();
  absl::Status note_reached(absl::StatusOr<std::vector<SendId>> sends);

  const PassId pass_;
  const std::weak_ptr<RpcRuntime> runtime_;  // weak: a pass must not keep its worker alive
  const std::shared_ptr<Listener> listener_;
  Strand strand_;
  std::atomic<bool> stopped_{false};
  std::atomic<int> queued_{0};
  std::atomic<bool> observed_{false};  // the observer has seen a leaf

  // Only the strand uses the members below.
  Setup setup_;
  LocalGraph graph_;
  SendId current_;  // the send that is being fed
  std::map<WorkerId, std::vector<GradEntry>> outputs_;
  size_t output_bytes_ = 0;
  std::map<WorkerId, std::vector<SendId>> reached_;
};

}  // namespace weft::dist_autograd_internal
