// Parses and writes the JSON header of a safetensors file. Parsing checks every field.
//
// A file consists of the header's length (u64, little-endian), the header, and the tensors' bytes.
// The header maps each tensor's name to its data type, shape and byte offsets. "__metadata__" maps
// strings to strings. Parsing is stricter than the format's own library, where this refuses no file
// in practice: it accepts no unknown fields and no tensor with more than 64 dimensions.
//
// Thread safety: plain values and functions.
// Errors of parsing: DataLoss, which names the tensor and the fault. The caller adds the file's
// name.
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
  uint64_t begin = 0;  // begin and end are byte offsets from the end of the header
  uint64_t end = 0;
};

struct SafetensorsHeader {
  std::vector<TensorEntry> tensors;  // in the order of their offsets, without gaps
  std::map<std::string, std::string> metadata;
};

inline constexpr uint64_t kMaxHeaderBytes = 100'000'000;
inline constexpr size_t kMaxDimensions = 64;
inline constexpr std::string_view kMetadataKey = "__metadata__";

// The header's length from the file's first 8 bytes. DataLoss: it is above kMaxHeaderBytes, or the
// file is too short for it.
absl::StatusOr<uint64_t> parse_header_length(const unsigned char (&bytes)[8], uint64_t file_size);

// `data_bytes` is the number of bytes after the header. The tensors must fill them exactly.
absl::StatusOr<SafetensorsHeader> parse_header(std::string_view json, uint64_t data_bytes);

// The number of bytes of a tensor of this shape. Nothing if a dimension is negative, or if a
// product does not fit int64_t. These products count an empty dimension as 1, as strides do.
std::optional<uint64_t> checked_bytes(StateDtype dtype, const std::vector<int64_t>& shape);

// Returns length and header, padded with spaces so that the tensors' bytes start at a multiple of
// 8. InvalidArgument: a name is reserved, a text is not UTF-8, or the header is too large.
absl::StatusOr<std::string> render_header(const SafetensorsHeader& header);

// A name from a file in quotes, escaped and cut to 80 characters, for a message.
std::string shown(std::string_view name);

}  // namespace weft::checkpoint_internal
