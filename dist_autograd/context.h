// A Context computes gradients across workers and does not touch any `.grad`.
//
//   weft::dist_autograd::Context context;
//   at::Tensor loss = weft::rpc_sync("w1", forward, x).sum();
//   context.backward({loss});
//   at::Tensor gradient = context.gradient(weight);
//
// Calls that the thread makes while the context exists record how tensors move between workers. The
// calls that these functions make in turn belong to the context too. Each worker keeps the
// gradients of its own leaves until the context is released.
//
// Thread safety: a Context belongs to the thread that made it, and this thread must destroy it. A
// thread has at most one. Its methods and the free functions may be called from any thread.
// Lifetime: the destructor releases the context on every worker. It never throws or waits. A
// Context may outlive its worker.
// Blocking: only backward(). It runs this worker's nodes and hooks on the calling thread, in that
// thread's own state. So a thread-local setting (autocast, say) that a hook changes and does not
// reset stays changed, unlike with loss.backward(). In contrast, backward_async() runs the nodes
// and hooks on the worker's executor, in a copy of the calling thread's state.
// Errors: RpcError, with one of these codes. After a failed pass no worker has gradients of it.
//
//   - FailedPrecondition: no worker, a context inside a context, a released context, a second pass
//     while one runs, a second backward without retain_graph.
//
//   - InvalidArgument: a root that is no scalar with a grad_fn.
//
//   - Unimplemented: create_graph.
//
//   - DeadlineExceeded: the pass took longer than BackwardOptions::timeout.
//
//   - Unknown: a node or hook threw an exception. The message names the node and the worker.
//
//   - Unavailable: a worker that takes part died. The context cannot be used any more; after every
//     other failure it can.
#pragma once

#include <memory>
#include <vector>

#include <ATen/core/Tensor.h>

#include "absl/status/status.h"
#include "weft/async/future.h"
#include "weft/base/ids.h"
#include "weft/rpc/runtime.h"

namespace weft::dist_autograd_internal {
class AutogradDriver;
}

namespace weft::dist_autograd {

enum class Mode : uint8_t {
  // If gradients wait for calls that the loss does not use, finds these calls and goes on.
  kDefault = 0,
  // Never looks for such calls. If gradients wait for one, the pass goes as far as it can. Then it
  // fails with FailedPrecondition, which names some calls that got no gradient.
  kAllSends = 1,
  // Finds such calls before it computes any gradient.
  kEager = 2,
};

struct BackwardOptions {
  bool retain_graph = false;
  bool create_graph = false;  // refused: Unimplemented
  Timeout timeout = {};       // for the whole pass; not set: the worker's default
  Mode mode = Mode::kDefault;
};

struct Gradient {
  at::Tensor variable;
  at::Tensor gradient;
};

class Context {
 public:
  // Creates the context on the current worker (call_scope.h), or on the given one.
  Context();
  explicit Context(std::shared_ptr<RpcRuntime> worker);
  ~Context();
  Context(const Context&) = delete;
  Context& operator=(const Context&) = delete;

  ContextId id() const { return id_; }

  // Roots are scalars of this worker. The gradients of several passes are added.
  void backward(std::vector<at::Tensor> roots, BackwardOptions options = {}) const;
  Future<void> backward_async(std::vector<at::Tensor> roots, BackwardOptions options = {}) const;

  // The gradients on this worker of all passes committed so far. A later pass of this context may
  // add to these tensors in place.
  std::vector<Gradient> gradients() const;
  // The gradient of a leaf of this worker; undefined if no pass reached it. For a leaf on another
  // worker, call a function there under this context. It can use gradient(current_context(), leaf).
  at::Tensor gradient(const at::Tensor& variable) const;

 private:
  void enter(std::shared_ptr<RpcRuntime> worker);

  std::weak_ptr<dist_autograd_internal::AutogradDriver> driver_;  // weak: may outlive the worker
  ContextId id_;
  std::shared_ptr<RpcRuntime> outer_;  // the call scope's worker before; the destructor restores it
};

// The context that this thread works in; invalid if there is none.
ContextId current_context();

// The same on the current worker, for functions that a context's calls run.
void backward(const ContextId& context, std::vector<at::Tensor> roots,
              BackwardOptions options = {});
Future<void> backward_async(const ContextId& context, std::vector<at::Tensor> roots,
                            BackwardOptions options = {});
std::vector<Gradient> gradients(const ContextId& context);
at::Tensor gradient(const ContextId& context, const at::Tensor& variable);

}  // namespace weft::dist_autograd

namespace weft::dist_autograd_internal {

// Returns OK, or the reason why no pass can start with these options.
absl::Status check_options(const dist_autograd::BackwardOptions& options);

}  // namespace weft::dist_autograd_internal
