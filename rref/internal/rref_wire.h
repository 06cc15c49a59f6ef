// Encodes the messages and references of the ownership protocol as bytes, and decodes them.
//
// Decoding checks every field, so its results are well formed. Whether the sender may send them is
// for the core to check.
//
// Thread safety: plain functions.
// Errors: InvalidArgument naming the message and the field.
// Protocol: proto/rref.proto.
#pragma once

#include <string>
#include <string_view>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "weft/rref/internal/ownership_types.h"

namespace weft::rref_internal {

std::string encode(const Message& message);
std::string encode(const Reference& reference);
std::string encode(const Creation& creation);
std::string encode(const Target& target);

absl::StatusOr<Message> decode_message(std::string_view bytes);
absl::StatusOr<Reference> decode_reference(std::string_view bytes);
absl::StatusOr<Creation> decode_creation(std::string_view bytes);
absl::StatusOr<Target> decode_target(std::string_view bytes);

// Decodes all references of a message. After an error, `out` still has those that could be decoded.
absl::Status decode_references(const std::vector<std::string>& wires, std::vector<Reference>& out);

}  // namespace weft::rref_internal
