// Memory for received tensors, used again: touching fresh pages costs several times the copy.
//
// Thread safety: all methods may be called from any thread.
// Lifetime: blocks may outlive the pool (they are freed instead of returned).
// Bound: at most `max_idle_bytes` are kept unused; blocks in use are bounded by their users.
#pragma once

#include <memory>

#include "weft/rpc/transport/frame.h"

namespace weft::rpc_internal {

class BufferPool {
 public:
  explicit BufferPool(size_t max_idle_bytes = size_t{1} << 30);
  ~BufferPool();

  // `size` bytes aligned to 64; their content is undefined. Null data if memory is short.
  Payload take(size_t size);
  size_t idle_bytes() const;

 private:
  struct State;
  const std::shared_ptr<State> state_;  // shared with the blocks in use
};

}  // namespace weft::rpc_internal
