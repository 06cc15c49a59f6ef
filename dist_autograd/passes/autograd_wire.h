// Converts the messages of distributed autograd to and from their protobuf form.
//
// Reading checks everything that proto/dist_autograd.proto demands, before a core sees the message.
// So a message that was read is well formed, but its claims may be false. These functions do not
// convert the gradients: a GRAD's payloads are null after reading, and tensors_expected says how
// many tensors must follow.
//
// Thread safety: free functions without state.
// Errors: InvalidArgument, naming the message and the field.
// Protocol: proto/dist_autograd.proto.
#pragma once

#include <cstddef>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "weft/dist_autograd/passes/pass_messages.h"
#include "weft/proto/dist_autograd.pb.h"

namespace weft::dist_autograd_internal {

// The maximum length of each list of a message, and the maximum number of slots of a send.
inline constexpr int kMaxWireList = 65536;

void to_wire(const AutogradMetadata& metadata, wire::AutogradMetadata& out);
// `tensor_count`: how many tensors the call or reply carries.
absl::StatusOr<AutogradMetadata> from_wire(const wire::AutogradMetadata& in, uint32_t tensor_count);

void to_wire(const AutogradMessage& message, wire::AutogradPost& out);
absl::StatusOr<AutogradMessage> from_wire(const wire::AutogradPost& in);
// The messages that are piggybacked on `in`.
absl::StatusOr<std::vector<AutogradMessage>> piggybacked_from_wire(const wire::AutogradPost& in);

// The number of tensors that follow the message in its frame.
size_t tensors_expected(const AutogradMessage& message);

}  // namespace weft::dist_autograd_internal
