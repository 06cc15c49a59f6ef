// Tensors to and from frames: large ones are sent in place and received without a second copy.
//
// Thread safety: pure functions.
// Errors: InvalidArgument naming the tensor's position (device, layout, type or header), or that
// there are too many small ones (TensorBudget), at both ends.
#pragma once

#include <vector>

#include <ATen/core/Tensor.h>

#include "absl/status/statusor.h"
#include "weft/rpc/transport/frame.h"

namespace weft {

struct TensorSendOptions {
  // Storage that others may write to is copied up to this size, above it is sent in place.
  size_t copy_up_to = size_t{1} << 20;
  // Storage whose tensor has no more handles than this is nobody else's.
  size_t holders = 1;
};

// Appends headers to frame.body and data to frame.payloads. Call after the values are in the body.
absl::Status encode_tensors(std::vector<at::Tensor> tensors, const TensorSendOptions& options,
                            Frame& frame);

// The tensors of an arrived frame; payloads are adopted. None requires grad.
absl::StatusOr<std::vector<at::Tensor>> decode_tensors(const Frame& frame);

}  // namespace weft
