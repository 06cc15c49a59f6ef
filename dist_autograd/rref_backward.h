// Backward passes that begin at a loss which is the value of an RRef, wherever it lives.
//
//   weft::dist_autograd::Context context;
//   weft::RRef<at::Tensor> loss = weft::remote("w1", forward, x);
//   weft::dist_autograd::backward(context.id(), loss);
//
// Free functions and not methods of RRef: references know nothing of autograd (docs/design.md).
// With a context the pass runs on the owner, of the context's graph, as Context::backward does; on
// a user that takes one call. Without one, the owner runs local autograd into `.grad`. The owner's
// program must include this header too.
//
// Thread safety: all functions may be called from any thread.
// Blocking: backward(), until the pass has ended. Either waits for the value to be there.
// Errors: those of context.h, and of the function that was to make the value. FailedPrecondition:
// no context on a worker that is not the owner; a released context. NotFound: a context that was
// never created, or of which this worker, the owner, knows nothing.
#pragma once

#include <type_traits>

#include "weft/dist_autograd/context.h"
#include "weft/rpc/function.h"
#include "weft/rref/rref.h"

namespace weft::dist_autograd {

Future<void> backward_async(const ContextId& context, const RRef<at::Tensor>& loss,
                            BackwardOptions options = {});
void backward(const ContextId& context, const RRef<at::Tensor>& loss, BackwardOptions options = {});

// On the owner: as loss.local_value().backward(), with errors as RpcError.
void backward(const RRef<at::Tensor>& loss, bool retain_graph = false);

// Only a tensor has gradients.
template <class T>
requires(!std::is_same_v<T, at::Tensor>) Future<void> backward_async(const ContextId&,
                                                                     const RRef<T>&,
                                                                     BackwardOptions = {})
= delete;
template <class T>
requires(!std::is_same_v<T, at::Tensor>) void backward(const ContextId&, const RRef<T>&,
                                                       BackwardOptions = {}) = delete;
template <class T>
requires(!std::is_same_v<T, at::Tensor>) void backward(const RRef<T>&, bool = false) = delete;

}  // namespace weft::dist_autograd

namespace weft::dist_autograd_internal {

// What a user asks the owner for.
struct RRefPass {
  uint64_t context_creator = 0;  // WorkerId::bits
  uint64_t context_number = 0;
  bool retain_graph = false;
  uint8_t mode = 0;
  int64_t timeout_ns = 0;  // 0: the owner's default
};
inline auto weft_fields(RRefPass& pass) {
  return std::tie(pass.context_creator, pass.context_number, pass.retain_graph, pass.mode,
                  pass.timeout_ns);
}

Future<void> backward_at_owner(RRefPass pass, RRef<at::Tensor> loss);
WEFT_REGISTER_FUNCTION(backward_at_owner);

}  // namespace weft::dist_autograd_internal
