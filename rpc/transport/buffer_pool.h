// A BufferPool gives memory for received tensors and uses freed blocks again, because to touch
// fresh pages costs several times the copy.
//
// Thread safety: all methods may be called from any thread.
// Lifetime: blocks may outlive the pool; then they are freed instead of returned.
// Bound: the pool keeps at most `max_idle_bytes` unused. Its users must limit the blocks in use.
#pragma once

#include <memory>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "weft/rpc/transport/frame.h"

namespace weft::rpc_internal {

class BufferPool {
 public:
  explicit BufferPool(size_t max_idle_bytes = size_t{1} << 30);
  ~BufferPool();

  // Returns `size` bytes, aligned to 64, with undefined content. The data is null if there is no
  // memory.
  Payload take(size_t size);
  // The same, but no memory is ResourceExhausted.
  absl::StatusOr<Payload> try_take(size_t size);
  // Gives each payload of a frame memory of its size.
  absl::Status fill(Frame& frame);
  size_t idle_bytes() const;

 private:
  struct State;
  const std::shared_ptr<State> state_;  // shared with the blocks in use
};

}  // namespace weft::rpc_internal
