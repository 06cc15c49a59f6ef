// The JSON header of a safetensors file: parsed with every field checked, and written.
//
// A file is: u64 little-endian length of the header, the header, then the tensors' bytes. The
// header maps each tensor's name to its dtype, shape and place in the bytes; "__metadata__" maps
// strings to strings. Parsing is stricter than the format's own library where that costs no real
// file: no unknown fields, no tensor of more than 64 dimensions.
//
// Thread safety: plain values and functions.
// Errors: parsing gives DataLoss naming the tensor and the fault; the caller adds the file.
#pragma once

#include <cstdint>
#include <map>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "absl/status/statusor.h"

namespace weft::checkpoint_internal {

enum class StateDtype : uint8_t {
  kF64,
  kF32,
  kF16,
  kBF16,
  kI64,
  kI32,
  kI16,
  kI8,
  kU8,
  kBool,
  kU64,
  kU32,
  kU16,
  kF8E4M3,  // e4m3fn
  kF8E5M2,
  kF8E8M0,  // e8m0fnu
};

std::string_view to_string(StateDtype dtype);
std::optional<StateDtype> parse_state_dtype(std::string_view name);
uint64_t bytes_per_element(StateDtype dtype);

struct TensorEntry {
  std::string name;
  StateDtype dtype = StateDtype::kF32;
  std::vector<int64_t> shape;
  uint64_t begin = 0;  // byte offsets from the header's end
  uint64_t end = 0;
};

struct SafetensorsHeader {
  std::vector<TensorEntry> tensors;  // in the order of their bytes, without gaps
  std::map<std::string, std::string> metadata;
};

inline constexpr uint64_t kMaxHeaderBytes = 100'000'000;
inline constexpr size_t kMaxDimensions = 64;
inline constexpr std::string_view kMetadataKey = "__metadata__";

// The length that the file's first 8 bytes announce, checked against the cap and the file's size.
absl::StatusOr<uint64_t> parse_header_length(const unsigned char (&bytes)[8], uint64_t file_size);

// `data_bytes`: how many bytes follow the header; the tensors must fill them exactly.
absl::StatusOr<SafetensorsHeader> parse_header(std::string_view json, uint64_t data_bytes);

// The bytes of a tensor of this shape; nothing if any product leaves int64_t, taking empty
// dimensions as 1 (strides are computed that way).
std::optional<uint64_t> checked_bytes(StateDtype dtype, const std::vector<int64_t>& shape);

// Length and header, padded with spaces so that the tensors' bytes start at a multiple of 8.
// InvalidArgument: a name is reserved or no UTF-8, or the header exceeds the cap.
absl::StatusOr<std::string> render_header(const SafetensorsHeader& header);

// A name from a file, made safe and short enough for a message.
std::string shown(std::string_view name);

}  // namespace weft::checkpoint_internal
