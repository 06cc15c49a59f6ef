#include "weft/rpc/transport/internal/record_checksum.h"

#define XXH_INLINE_ALL
#include <xxhash.h>

namespace weft::rpc_internal {

uint32_t record_checksum(uint8_t kind, uint32_t size, std::string_view covered) {
  const uint64_t seed = uint64_t{size} << 8 | kind;
  return static_cast<uint32_t>(XXH3_64bits_withSeed(covered.data(), covered.size(), seed));
}

}  // namespace weft::rpc_internal
