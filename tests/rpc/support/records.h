// Makes records of a stream (rpc/transport/internal/stream_codec.h) by hand.
//
// Thread safety: free functions.
#pragma once

#include <algorithm>
#include <cstdint>
#include <cstring>
#include <string>
#include <string_view>

#include "weft/rpc/transport/internal/record_checksum.h"

namespace weft::rpc_internal {

template <class T>
std::string bytes_of(T value) {
  return std::string(reinterpret_cast<const char*>(&value), sizeof(value));
}

// A record as it is sent, but without its checksum.
inline std::string unsealed_record(uint8_t kind, std::string_view content) {
  return bytes_of(kind) + bytes_of(static_cast<uint32_t>(content.size())) + std::string(content);
}

// Gives each record its right checksum. A rest that is no whole record stays as it is.
inline std::string sealed(std::string_view records) {
  constexpr uint8_t kChunk = 3;
  std::string text;
  while (records.size() >= 5) {
    const auto kind = static_cast<uint8_t>(records[0]);
    uint32_t size = 0;
    std::memcpy(&size, records.data() + 1, sizeof(size));
    text += records.substr(0, 5);
    records.remove_prefix(5);
    const std::string_view content = records.substr(0, size);
    text += bytes_of(record_checksum(kind, size, kind == kChunk ? std::string_view() : content));
    text += content;
    records.remove_prefix(content.size());
  }
  return text += records;
}

}  // namespace weft::rpc_internal
