// Puts tensors into frames and takes them out: large ones are sent in place and received without a
// second copy.
//
// Thread safety: pure functions.
// Errors: InvalidArgument at both ends. It names the tensor's index (device, layout, dtype or
// header), or says that there are too many small tensors (TensorBudget).
#pragma once

#include <functional>
#include <optional>
#include <vector>

#include <ATen/core/Tensor.h>

#include "absl/status/statusor.h"
#include "weft/rpc/transport/frame.h"

namespace weft {

struct TensorSendOptions {
  // In bytes. A tensor that another holder may write to is copied up to this size, and sent in
  // place above it.
  size_t copy_up_to = size_t{1} << 20;
  // Nobody writes to a tensor that has at most this many handles, so it is not copied.
  size_t holders = 1;
  // Nobody else reads or writes the tensors any more.
  bool give = false;
  // Makes the copies of at least kLeastCopied bytes. If it is not set or returns nothing, the
  // tensor is cloned.
  std::function<std::optional<Payload>(const std::byte* data, size_t size)> copy = {};
  static constexpr size_t kLeastCopied = size_t{16} << 10;
};

// Appends headers to frame.body and data to frame.payloads. The values must be in the body already.
absl::Status encode_tensors(std::vector<at::Tensor> tensors, const TensorSendOptions& options,
                            Frame& frame);

// Returns the tensors of an arrived frame. They use the payloads' memory; none requires grad.
absl::StatusOr<std::vector<at::Tensor>> decode_tensors(const Frame& frame);

}  // namespace weft
