// Runs backward passes from a loss that is the value of an RRef, on whatever worker it lives.
//
//   weft::dist_autograd::Context context;
//   weft::RRef<at::Tensor> loss = weft::remote("w1", forward, x);
//   weft::dist_autograd::backward(context.id(), loss);
//
// These are free functions and not methods of RRef, because the room rref must not depend on
// autograd (docs/design.md). With a context, the owner starts the pass, as by Context::backward; a
// user needs one call for that. Without a context, the owner runs local autograd into `.grad`. The
// owner's program must include this header too.
//
// Thread safety: all functions may be called from any thread.
// Blocking: backward(), until the pass has ended. Every pass waits until the value is there.
// Errors: those of context.h, and those of the function that creates the value. FailedPrecondition:
// no context on a worker that is not the owner; a released context. NotFound: a context that was
// never created, or that this worker, the owner, does not know.
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

// A user's request to the owner to start a pass.
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
