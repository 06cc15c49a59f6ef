// The bytes of a frame's head: fixed header, payload sizes, meta and body, as proto/weft.proto
// says.
//
// Thread safety: pure functions.
// Errors: InvalidArgument naming the field; nothing is allocated on the word of a size that has not
// been checked against `limits` and the bytes at hand.
#pragma once

#include <string>
#include <string_view>

#include "absl/status/statusor.h"
#include "weft/rpc/transport/frame.h"
#include "weft/rpc/transport/transport.h"

namespace weft::rpc_internal {

inline constexpr size_t kFixedHeaderBytes = 104;

// Everything but the payloads' contents; appended to `out`.
void append_head(const Frame& frame, std::string& out);
// InvalidArgument if receivers with these limits refuse the frame, or if its sizes do not fit the
// header. Such a frame must not be sent: it would end one connection after the other.
absl::Status check_frame(const Frame& frame, const TransportLimits& limits);

std::string encode_head(const Frame& frame);

// How many bytes the head takes, from its first kFixedHeaderBytes.
absl::StatusOr<size_t> head_size(std::string_view start, const TransportLimits& limits);

// A frame whose payloads have sizes and no memory yet. `head` is exactly one head.
absl::StatusOr<Frame> decode_head(std::string_view head, const TransportLimits& limits);

}  // namespace weft::rpc_internal
