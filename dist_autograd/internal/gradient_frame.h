// Messages of distributed autograd to and from frames, gradients included.
//
// Thread safety: free functions without state.
// Errors: InvalidArgument: not a message, a gradient that cannot be sent, or another number of
// tensors than the message announces.
// Protocol: proto/dist_autograd.proto.
#pragma once

#include "absl/status/statusor.h"
#include "weft/dist_autograd/internal/pass_messages.h"
#include "weft/rpc/frame.h"

namespace weft::internal {

absl::StatusOr<Frame> to_frame(AutogradMessage message);
// The entries of a GRAD come with their TensorPayload.
absl::StatusOr<AutogradMessage> from_frame(const Frame& frame);

}  // namespace weft::internal
