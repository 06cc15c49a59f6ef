// A message that opens a connection of shared memory, as it is and again with the right layout. The
// local address of a worker, too.
#include <algorithm>
#include <string>

#include "weft/rpc/same_host/handshake.h"
#include "weft/rpc/transport/hello.h"
#include "weft/rpc/transport/status_wire.h"
#include "weft/shm/byte_ring.h"
#include "weft/shm/wake_bits.h"
#include "weft/tests/fuzz/fuzz.h"

namespace weft::fuzz {
namespace {

using rpc_internal::decode_introduction;
using rpc_internal::Introduction;

void take(const std::string& message) {
  const absl::StatusOr<Introduction> first = decode_introduction(message);
  if (!first.ok()) return require_refusal(first.status());
  require(first->slot < WakeBits::kSlots, "a slot that nobody has");
  require(first->ring_bytes == 0 || valid_ring_size(first->ring_bytes), "a ring of no valid size");
  require(first->ring_bytes <= rpc_internal::kMostFrameRing, "a ring beyond the limit");
  if (first->hello.has_refused()) {
    require(!rpc_internal::decode_status(first->hello.refused()).ok(), "a refusal reads as OK");
  }
  (void)rpc_internal::identity_of(first->hello);
  const absl::StatusOr<Introduction> again = decode_introduction(encode_introduction(*first));
  require(again.ok(), "what was written cannot be read");
  require(again->slot == first->slot && again->ring_bytes == first->ring_bytes &&
              again->nonce == first->nonce &&
              again->hello.SerializeAsString() == first->hello.SerializeAsString(),
          "an introduction has changed");
}

}  // namespace
}  // namespace weft::fuzz

int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  using weft::fuzz::require;
  std::string message(reinterpret_cast<const char*>(data), size);
  weft::fuzz::take(message);
  const std::string layout = encode_introduction(weft::rpc_internal::Introduction()).substr(0, 8);
  message.replace(0, std::min(message.size(), layout.size()), layout);
  weft::fuzz::take(message);
  const auto name = weft::rpc_internal::listener_at(message);
  if (!name.ok()) weft::fuzz::require_refusal(name.status());
  const auto own = weft::rpc_internal::listener_at(weft::rpc_internal::local_address(message));
  require(own.ok() == (!message.empty() && message.find(',') == std::string::npos),
          "an address of this host is not what its listener says");
  if (own.ok()) require(*own == message, "a name has changed");
  return 0;
}
