// Runs one worker's part of a distributed backward pass over the graph that LibTorch recorded.
//
// Gradients enter through *sources*: the roots of the pass, and the tensors that this worker has
// sent. They leave at leaves, where they are staged. They also leave at received tensors: then
// `on_answer` gets them, one answer per received message. With `split` the gradients of weights
// come later, when run_weights() is called.
//
// A node runs once, when a gradient has come or been cancelled for every edge into it from any
// source. Hooks, checks and the release of saved tensors are as in LibTorch's engine. Parts of the
// graph that no gradient enters do not run. There is no networking and no waiting.
//
// Differences to loss.backward(): `.grad` of leaves is neither read nor written. Hooks that
// LibTorch runs after accumulating into `.grad` (register_post_accumulate_grad_hook) do not run.
// Callbacks queued on LibTorch's engine run at the end of the call that queued them.
//
// Thread safety: none. One strand uses an object; only stop() may be called from any thread. User
// code (hooks, custom functions) runs inside feed, cancel and run_weights on the calling thread. No
// lock is held then. User code must not call back into the same object. Lifetime: keeps the graph
// of its sources alive until it is destroyed. Errors: the first error is final. Every later call
// returns it, and nothing is staged any more. A call that uses a source wrongly (NotFound, used
// twice) is an exception: it changes nothing and its error is not final. The codes:
//
//   - Unknown: a node, a hook or a callback threw. The message and failed_node() name the node.
//
//   - InvalidArgument: a gradient does not fit its tensor, or a root is no scalar with a grad_fn.
//
//   - FailedPrecondition: a source that is used twice.
//
//   - NotFound: no such source. Cancelled: stopped.
//
//   - Unimplemented: the graph is on another device than the CPU.
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

namespace torch::autograd {
struct Node;
}

namespace weft::dist_autograd_internal {

struct SendRecord;

struct LocalGraphOptions {
  bool retain_graph = false;
  // Runs the nodes inside a pass of LibTorch's engine, so that hooks can queue callbacks on it. If
  // a leaf's AccumulateGrad node has hooks, `engage` sets this to true.
  bool engine_scope = false;
  // Splits the backward: feed and cancel compute the gradients of received tensors, and of what
  // leads to them. run_weights() computes the rest. The bits are those of the whole backward. Until
  // then the graph keeps some gradients that were fed or answered, so nobody may change them in
  // place. While feed, cancel or run_weights runs, no other pass may run a node of this graph.
  bool split = false;
  // Runs the hooks of leaves. False: the gradients are to be summed with those of other graphs, and
  // the hooks run on the sum.
  bool leaf_hooks = true;
  // The state of the thread that called backward(); hooks and nodes run in it. If it is not set,
  // they run in the state of the thread that feeds.
  std::optional<at::ThreadLocalState> caller = std::nullopt;
  // Called when a leaf's gradient is final; it may assign the gradient or change it in place. If
  // the gradient is undefined, the sources lead to the leaf, but no gradient came. Then `on_leaf`
  // must not change it.
  absl::AnyInvocable<absl::Status(const at::Tensor& variable, at::Tensor& gradient)> on_leaf =
      nullptr;
  // Called inside feed and cancel as soon as the answer for a received message is complete.
  absl::AnyInvocable<void(RecvAnswer)> on_answer = nullptr;
};

class LocalGraph {
 public:
  explicit LocalGraph(LocalGraphOptions options);
  ~LocalGraph();
  LocalGraph(const LocalGraph&) = delete;
  LocalGraph& operator=(const LocalGraph&) = delete;

  // Counts the dependencies of every node over the union of all sources. Call it once, before all
  // other methods. Roots are scalars with a grad_fn; only the initiator has some. The records are
  // copied.
  absl::Status engage(c10::ArrayRef<at::Tensor> roots, absl::Span<const SendRecord* const> sends);

  // Gives a source its gradients, and runs ready nodes until none is left. Each source is fed at
  // most once. Roots get ones. `gradients` has one entry per tensor of the message. An undefined
  // entry means that no gradient comes through this edge.
  absl::Status feed_roots();
  absl::Status feed(SendId send, std::vector<at::Tensor> gradients);
  // Resolves the edges of a source for which no gradient will come, and runs ready nodes.
  absl::Status cancel(SendId send);
  // With `split`, after the last feed or cancel: computes what these have left. FailedPrecondition:
  // without `split`, a second time, or waiting().
  absl::Status run_weights();

  // Returns the sends of the received messages to which the source leads, without those that an
  // earlier call has returned. These sends are active. Runs nothing.
  absl::StatusOr<std::vector<SendId>> reach_roots();
  absl::StatusOr<std::vector<SendId>> reach(SendId send);

  // True if a gradient has entered and cannot go on until another source is fed or cancelled.
  bool waiting() const;
  // The sends that were neither fed nor cancelled, in the order given to engage.
  std::vector<SendId> unanswered() const;
  bool fed(SendId send) const;

  // Takes the staged gradients of this pass, in the order in which the leaves first got one.
  std::vector<LeafGradient> take_leaves();
  // The staged gradient of a leaf, or null if there is none (yet). Valid until the next call that
  // feeds, cancels, replaces, gives or takes.
  const at::Tensor* staged(const at::Tensor& variable);
  // Replaces the gradient of a leaf by one of the leaf's shape and type.
  absl::Status replace(const at::Tensor& variable, at::Tensor gradient);
  // The same, also for a leaf that no source reached.
  absl::Status give(const at::Tensor& variable, at::Tensor gradient);

  // Stops the pass before the next node runs. Any thread may call it.
  void stop();

  // The name of the node whose failure stopped the pass; empty otherwise.
  const std::string& failed_node() const;
  // Of the nodes that this thread has recorded, the one that it recorded first; leaves do not
  // count. Null: there is none. Valid as long as this object.
  const torch::autograd::Node* oldest_node() const;
  size_t nodes() const;     // number of nodes that can be reached from any source
  size_t executed() const;  // number of nodes run so far, with leaves and received tensors

 private:
  class Impl;
  std::unique_ptr<Impl> impl_;
};

}  // namespace weft::dist_autograd_internal
