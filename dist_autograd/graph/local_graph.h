// Runs one worker's part of a distributed backward pass over the graph that LibTorch recorded.
//
// Gradients enter through *sources*: the roots of the pass and the tensors this worker has sent.
// They leave at leaves, which are staged here, and at received tensors, whose gradients are handed
// to `on_answer`, one answer per received message. A node runs once, when every edge into it from
// any source has been fed through or cancelled; hooks, checks and release of saved tensors are as
// in LibTorch's engine. Dead parts (no gradient ever entered) run nothing. No networking, no
// waiting.
//
// Differences to loss.backward(): `.grad` of leaves is neither read nor written, and hooks that
// LibTorch runs after accumulating into `.grad` (register_post_accumulate_grad_hook) do not run.
// Callbacks queued on LibTorch's engine run at the end of the call that queued them.
//
// Thread safety: none, one strand drives an object; only stop() may be called from any thread. User
// code (hooks, custom functions) runs inside feed and cancel on the calling thread, with no lock
// held, and must not call back into the same object.
// Lifetime: keeps the graph of its sources alive until destroyed.
// Errors: the first one is final, every later call returns it and nothing is staged any more.
// Unknown: a node, a hook or a callback threw; the message and failed_node() name the node.
// InvalidArgument: a gradient does not fit its tensor. FailedPrecondition: a second backward
// without retain_graph. NotFound: no such source. Cancelled: stopped. Unimplemented: the graph is
// on another device than the CPU. A call that uses a source wrongly (NotFound, used twice) changes
// nothing and is not final.
// Protocol: docs/backward_protocol.md.
#pragma once

#include <cstddef>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include <ATen/ThreadLocalState.h>
#include <ATen/core/Tensor.h>
#include <c10/util/ArrayRef.h>

#include "absl/functional/any_invocable.h"
#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/types/span.h"
#include "weft/base/ids.h"
#include "weft/dist_autograd/graph/leaf_stage.h"
#include "weft/dist_autograd/graph/recv_answers.h"

namespace weft::dist_autograd_internal {

struct SendRecord;

struct LocalGraphOptions {
  bool retain_graph = false;
  // Runs the nodes inside a pass of LibTorch's engine, so that hooks can queue
  // callbacks on it. Switched on by itself when a leaf's AccumulateGrad node has hooks.
  bool engine_scope = false;
  // The state of the thread that called backward(), for hooks and nodes. Not set: they run in that
  // of the thread that feeds.
  std::optional<at::ThreadLocalState> caller = std::nullopt;
  // Called once a leaf's gradient is final; may assign it or change it in place. Undefined: the
  // sources lead to the leaf, but brought nothing; then it must be left alone.
  absl::AnyInvocable<absl::Status(const at::Tensor& variable, at::Tensor& gradient)> on_leaf =
      nullptr;
  // Called inside feed and cancel as soon as a received message is answered in full.
  absl::AnyInvocable<void(RecvAnswer)> on_answer = nullptr;
};

class LocalGraph {
 public:
  explicit LocalGraph(LocalGraphOptions options);
  ~LocalGraph();
  LocalGraph(const LocalGraph&) = delete;
  LocalGraph& operator=(const LocalGraph&) = delete;

  // Counts the dependencies of every node over the union of all sources. Once, and first. Roots are
  // scalars with a grad_fn, none on workers that only take part. The records are copied.
  absl::Status engage(c10::ArrayRef<at::Tensor> roots, absl::Span<const SendRecord* const> sends);

  // Gives a source its gradients and runs what becomes ready until nothing is. Each source once.
  // Roots get ones. `gradients` has one entry per tensor of the message; an undefined one counts as
  // an edge through which nothing comes.
  absl::Status feed_roots();
  absl::Status feed(SendId send, std::vector<at::Tensor> gradients);
  // No gradient will come for this source.
  absl::Status cancel(SendId send);

  // Received messages that the source leads to and no earlier call has reported: their senders are
  // active. Runs nothing.
  absl::StatusOr<std::vector<SendId>> reach_roots();
  absl::StatusOr<std::vector<SendId>> reach(SendId send);

  // A gradient has entered and can neither run nor leave until another source is fed or cancelled.
  bool waiting() const;
  // Sends neither fed nor cancelled, in the order given to engage.
  std::vector<SendId> unanswered() const;
  bool fed(SendId send) const;

  // Gradients of this pass by leaf, in the order they became final. Empties the stage.
  std::vector<LeafGradient> take_leaves();
  // The staged gradient of a leaf, null if there is none (yet). Valid until the next call that
  // feeds, cancels, replaces or takes.
  const at::Tensor* staged(const at::Tensor& variable);
  // Gives a leaf that has a gradient another one, of its shape and type.
  absl::Status replace(const at::Tensor& variable, at::Tensor gradient);
  // The same, also for a leaf that no source reached.
  absl::Status give(const at::Tensor& variable, at::Tensor gradient);

  // Takes effect before the next node runs. Any thread.
  void stop();

  // Name of the node whose failure ended the pass, empty otherwise.
  const std::string& failed_node() const;
  size_t nodes() const;     // reached from any source
  size_t executed() const;  // run so far, leaves and received tensors included

 private:
  class Impl;
  std::unique_ptr<Impl> impl_;
};

}  // namespace weft::dist_autograd_internal
