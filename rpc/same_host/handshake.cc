#include "weft/rpc/same_host/handshake.h"

#include <cstring>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_split.h"
#include "weft/base/log.h"
#include "weft/base/status.h"
#include "weft/rpc/transport/hello.h"
#include "weft/shm/byte_ring.h"
#include "weft/shm/host_identity.h"
#include "weft/shm/return_ring.h"
#include "weft/shm/wake_bits.h"

namespace weft::rpc_internal {
namespace {

struct Header {
  uint64_t layout;
  uint32_t slot;
  uint32_t ring_bytes;
  uint64_t nonce;
};
static_assert(sizeof(Header) == 24);

// Change kVersion with any change of a layout or of the protocol in shared memory.
constexpr uint64_t kVersion = 1;
constexpr uint64_t kLayout =
    uint64_t{0x7765'6674} << 32 | kVersion << 24 |
    (sizeof(RingHeader) + sizeof(ReturnRing) * 3 + sizeof(WakeBits) * 7) % (1 << 24);

const std::string& this_host() {
  static const std::string host = host_identity();
  return host;
}

}  // namespace

std::string encode_introduction(const Introduction& introduction) {
  const Header header = {kLayout, introduction.slot, introduction.ring_bytes, introduction.nonce};
  std::string message(reinterpret_cast<const char*>(&header), sizeof(header));
  introduction.hello.AppendToString(&message);
  return message;
}

absl::StatusOr<Introduction> decode_introduction(std::string_view message) {
  Header header;
  if (message.size() < sizeof(header)) {
    return absl::InvalidArgumentError(
        absl::StrCat("an introduction of ", message.size(), " bytes is shorter than its header"));
  }
  std::memcpy(&header, message.data(), sizeof(header));
  if (header.layout != kLayout) {
    return absl::FailedPreconditionError(absl::StrCat("the far end shares memory with layout ",
                                                      absl::Hex(header.layout),
                                                      ", this program with ", absl::Hex(kLayout)));
  }
  if (header.slot >= WakeBits::kSlots) {
    return absl::InvalidArgumentError(absl::StrCat("slot ", header.slot, " of an introduction"));
  }
  if (header.ring_bytes != 0 &&
      (!valid_ring_size(header.ring_bytes) || header.ring_bytes > kMostFrameRing)) {
    return absl::InvalidArgumentError(
        absl::StrCat("an introduction with a ring of ", header.ring_bytes, " bytes"));
  }
  WEFT_ASSIGN_OR_RETURN(wire::Hello hello, parse_hello(message.substr(sizeof(header))));
  return Introduction{header.slot, header.ring_bytes, header.nonce, std::move(hello)};
}

std::string local_address(const std::string& listener) {
  return absl::StrCat(this_host(), ",", listener);
}

absl::StatusOr<std::string> listener_at(const std::string& local_address) {
  const std::vector<std::string> parts = absl::StrSplit(local_address, ',');
  if (parts.size() != 2 || parts[0] != this_host() || parts[1].empty()) {
    return absl::FailedPreconditionError(
        absl::StrCat("'", printable(local_address), "' is not on this host"));
  }
  return parts[1];
}

}  // namespace weft::rpc_internal
