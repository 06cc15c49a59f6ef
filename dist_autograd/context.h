// A distributed autograd context: gradients across workers, without touching anybody's `.grad`.
//
//   weft::dist_autograd::Context context;
//   at::Tensor loss = weft::rpc_sync("w1", forward, x).sum();
//   context.backward({loss});
//   at::Tensor gradient = context.gradient(weight);
//
// Calls made while the context lives record how tensors moved between workers; calls made inside
// the functions they run belong to it too. Each worker keeps the gradients of its own leaves until
// the context ends.
//
// Thread safety: a Context belongs to the thread that made it, which destroys it too, and is that
// thread's only one. Its methods and the free functions may be called from any thread.
// Lifetime: the destructor releases the context on every worker. It never throws or waits. A
// Context may outlive its worker.
// Blocking: only backward(). It runs this worker's nodes and hooks on the calling thread, in that
// thread's own state: unlike with loss.backward(), a thread-local setting that a hook changes and
// does not reset (autocast, say) stays changed. backward_async() runs them on the worker's
// executor, in a copy of the calling thread's state.
// Errors: RpcError. FailedPrecondition: no worker, a context inside a context, a released context,
// a second pass while one runs, a second backward without retain_graph. InvalidArgument: a root
// that is no scalar with a grad_fn. Unknown: a node or hook threw; the message names node and
// worker. Unavailable: a worker that takes part died; the context cannot be used any more. After
// every other failure it can. A failed pass leaves no gradient anywhere.
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
  // Finds calls that the loss does not use, if any hold gradients up.
  kDefault = 0,
  // Never looks for them. If one holds gradients up, the pass goes as far as it can and then fails:
  // FailedPrecondition, naming some calls that got no gradient.
  kAllSends = 1,
  // Finds them before it begins.
  kEager = 2,
};

struct BackwardOptions {
  bool retain_graph = false;
  bool create_graph = false;  // refused: Unimplemented
  Timeout timeout = {};       // of the whole pass; not set: the worker's default
  Mode mode = Mode::kDefault;
};

struct Gradient {
  at::Tensor variable;
  at::Tensor gradient;
};

class Context {
 public:
  // On the current worker (call_scope.h), or on a given one.
  Context();
  explicit Context(std::shared_ptr<RpcRuntime> worker);
  ~Context();
  Context(const Context&) = delete;
  Context& operator=(const Context&) = delete;

  ContextId id() const { return id_; }

  // Roots are scalars of this worker. Several passes add up.
  void backward(std::vector<at::Tensor> roots, BackwardOptions options = {}) const;
  Future<void> backward_async(std::vector<at::Tensor> roots, BackwardOptions options = {}) const;

  // What the passes committed so far left on this worker. A later pass of this context may add to
  // these tensors in place.
  std::vector<Gradient> gradients() const;
  // Of a leaf of this worker; undefined if no pass reached it. For a leaf elsewhere call a function
  // there under this context that uses gradient(current_context(), leaf).
  at::Tensor gradient(const at::Tensor& variable) const;

 private:
  void enter(std::shared_ptr<RpcRuntime> worker);

  std::weak_ptr<dist_autograd_internal::AutogradDriver> driver_;  // weak: may outlive the worker
  ContextId id_;
  std::shared_ptr<RpcRuntime> outer_;  // the scope's worker before
};

// The context that this thread works in; invalid if there is none.
ContextId current_context();

// The same for functions that a context's calls run: on the current worker.
void backward(const ContextId& context, std::vector<at::Tensor> roots,
              BackwardOptions options = {});
Future<void> backward_async(const ContextId& context, std::vector<at::Tensor> roots,
                            BackwardOptions options = {});
std::vector<Gradient> gradients(const ContextId& context);
at::Tensor gradient(const ContextId& context, const at::Tensor& variable);

}  // namespace weft::dist_autograd

namespace weft::dist_autograd_internal {

// OK, or why no pass can be started with these options.
absl::Status check_options(const dist_autograd::BackwardOptions& options);

}  // namespace weft::dist_autograd_internal
