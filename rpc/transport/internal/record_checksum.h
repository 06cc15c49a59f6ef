// Computes the checksum of a record of a stream (stream_codec.h). If bits change on the way, the
// connection must close. Otherwise the sender would take a lost message for delivered.
//
// Thread safety: pure function.
#pragma once

#include <cstdint>
#include <string_view>

namespace weft::rpc_internal {

// The low half of XXH3-64 over `covered`, seeded with size << 8 | kind.
uint32_t record_checksum(uint8_t kind, uint32_t size, std::string_view covered);

}  // namespace weft::rpc_internal
