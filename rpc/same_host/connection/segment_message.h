// The message that hands a segment of an arena over, through the local socket of a connection. It
// carries the descriptor of the segment's memory.
//
//   u32 number   of the segment
//   u32 zero
//   u64 size     in bytes
//
// Thread safety: a plain value.
// Errors: InvalidArgument, if the message is not of this form.
// Protocol: docs/data_plane.md, "Lent payloads".
#pragma once

#include <cstdint>
#include <cstring>
#include <string_view>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/strings/str_cat.h"

namespace weft::rpc_internal {

struct SegmentMessage {
  uint32_t number = 0;
  uint32_t zero = 0;
  uint64_t size = 0;

  std::string_view bytes() const { return {reinterpret_cast<const char*>(this), sizeof(*this)}; }
  static absl::StatusOr<SegmentMessage> parse(std::string_view bytes) {
    SegmentMessage message;
    if (bytes.size() == sizeof(message)) std::memcpy(&message, bytes.data(), sizeof(message));
    if (bytes.size() != sizeof(message) || message.zero != 0) {
      return absl::InvalidArgumentError(
          absl::StrCat("a message of ", bytes.size(), " bytes that hands over no segment"));
    }
    return message;
  }
};
static_assert(sizeof(SegmentMessage) == 16, "the layout is shared between processes");

}  // namespace weft::rpc_internal
