// Encodes and decodes the head of a frame: fixed header, payload sizes, meta and body.
//
// Thread safety: pure functions.
// Errors: InvalidArgument, which names the field. A size is checked against `limits` and the bytes
// at hand before memory is allocated for it.
// Protocol: proto/weft.proto, section "Envelope".
#pragma once

#include <string>
#include <string_view>

#include "absl/status/statusor.h"
#include "weft/rpc/transport/frame.h"
#include "weft/rpc/transport/transport.h"

namespace weft::rpc_internal {

inline constexpr size_t kFixedHeaderBytes = 104;

// How many bytes the head has: everything but the contents of the payloads.
size_t head_bytes(const Frame& frame);
// Writes the head to `out`, which has room for head_bytes(frame).
void write_head(const Frame& frame, char* out);
// Appends the head to `out`.
void append_head(const Frame& frame, std::string& out);
// Returns InvalidArgument if receivers with these limits would refuse the frame, or if its sizes do
// not fit the header. Such a frame must not be sent: it would close each connection that it is
// resent on.
absl::Status check_frame(const Frame& frame, const TransportLimits& limits);

std::string encode_head(const Frame& frame);

// Reads from the first kFixedHeaderBytes of a head how many bytes the whole head has.
absl::StatusOr<size_t> head_size(std::string_view start, const TransportLimits& limits);

// Returns a frame whose payloads have sizes but no memory yet. `head` must be exactly one head.
absl::StatusOr<Frame> decode_head(std::string_view head, const TransportLimits& limits);

}  // namespace weft::rpc_internal
