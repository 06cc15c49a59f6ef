// Messages of distributed autograd to and from frames, gradients included.
//
// Thread safety: free functions without state.
// Errors: InvalidArgument: not a message, a gradient that cannot be sent, or another number of
// tensors than the message announces.
// Protocol: proto/dist_autograd.proto.
#pragma once

#include <vector>

#include "absl/status/statusor.h"
#include "weft/dist_autograd/passes/pass_messages.h"
#include "weft/rpc/transport/frame.h"

namespace weft::dist_autograd_internal {

// Messages without a hurry that go along with another to the same worker.
using Piggybacked = std::vector<AutogradMessage>;

struct AutogradBatch {
  Piggybacked piggybacked;  // to be acted upon first
  AutogradMessage message;
};

absl::StatusOr<Frame> to_frame(AutogradMessage message, const Piggybacked& piggybacked = {});
// The entries of a GRAD come with their TensorPayload.
absl::StatusOr<AutogradBatch> from_frame(const Frame& frame);

}  // namespace weft::dist_autograd_internal
