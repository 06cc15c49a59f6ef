// The head of a frame. An accepted head must be written as the same bytes, and Weft must be allowed
// to send it.
#include "weft/rpc/transport/frame_codec.h"
#include "weft/tests/fuzz/fuzz.h"

using weft::fuzz::require;
using weft::fuzz::require_refusal;

int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  const std::string_view head(reinterpret_cast<const char*>(data), size);
  const weft::TransportLimits limits{.max_frame_bytes = size_t{1} << 20, .max_payloads = 64};
  const auto length = weft::rpc_internal::head_size(head, limits);
  if (!length.ok()) require_refusal(length.status());
  const auto frame = weft::rpc_internal::decode_head(head, limits);
  if (!frame.ok()) {
    require_refusal(frame.status());
    return 0;
  }
  require(length.ok() && *length == size, "a head of another size than it says");
  require(frame->header.value_bytes <= frame->body.size(), "values end behind the body");
  require(weft::rpc_internal::encode_head(*frame) == head, "the head is written differently");
  require(weft::rpc_internal::check_frame(*frame, limits).ok(), "what arrives may not be sent");
  return 0;
}
