// Converts messages of distributed autograd, gradients included, to frames and back.
//
// Thread safety: free functions without state.
// Errors: InvalidArgument: the frame is no such message, a gradient cannot be sent, or the number
// of tensors is not the announced one. Internal: a GRAD whose payloads do not fit its entries.
// Protocol: proto/dist_autograd.proto.
#pragma once

#include <vector>

#include "absl/status/statusor.h"
#include "weft/dist_autograd/passes/pass_messages.h"
#include "weft/rpc/transport/frame.h"

namespace weft::dist_autograd_internal {

// Messages that are piggybacked on another message to the same worker, because nobody waits for
// them.
using Piggybacked = std::vector<AutogradMessage>;

// A message with its piggybacked messages.
struct AutogradBatch {
  Piggybacked piggybacked;  // the receiver handles them before `message`
  AutogradMessage message;
};

absl::StatusOr<Frame> to_frame(AutogradMessage message, const Piggybacked& piggybacked = {});
// Each entry of a GRAD that has gradients gets its TensorPayload.
absl::StatusOr<AutogradBatch> from_frame(const Frame& frame);

}  // namespace weft::dist_autograd_internal
