// The checksum of a record of a stream (stream_codec.h): bits that change on the way must cost a
// connection, not a message whose sender takes it for delivered.
//
// Thread safety: pure function.
#pragma once

#include <cstdint>
#include <string_view>

namespace weft::rpc_internal {

// The low half of XXH3-64 over what is covered, seeded with size << 8 | kind.
uint32_t record_checksum(uint8_t kind, uint32_t size, std::string_view covered);

}  // namespace weft::rpc_internal
