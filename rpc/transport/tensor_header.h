// Describes a tensor on the wire, apart from its elements. Parsing trusts no field.
//
// Thread safety: pure functions on plain values.
// Errors: InvalidArgument naming the tensor's position and the field. No memory is allocated on the
// word of a header: sizes are multiplied with overflow checks and must equal the bytes that came.
// The cost of tensors beside their elements is charged against a budget (TensorBudget). Wire: u8
// dtype, u8 layout, u8 format, u8 flags, u8 dimensions, then i64 sizes[dimensions]; sparse: u8
// sparse dimensions, i64 nnz. Inlined tensors are followed by their bytes; others have one payload
// (dense) or two (sparse: indices i64[sparse dimensions, nnz], then values). No strides: data is
// contiguous in the order that `format` names.
#pragma once

#include <cstdint>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "absl/status/statusor.h"

namespace weft {

// Codes on the wire; never renumbered.
enum class WireType : uint8_t {
  kUint8 = 1,
  kInt8 = 2,
  kInt16 = 3,
  kInt32 = 4,
  kInt64 = 5,
  kFloat16 = 6,
  kFloat32 = 7,
  kFloat64 = 8,
  kComplex64 = 9,
  kComplex128 = 10,
  kBool = 11,
  kBFloat16 = 12,
  kUint16 = 13,
  kUint32 = 14,
  kUint64 = 15,
  kFloat8E4m3fn = 16,
  kFloat8E5m2 = 17,
  kFloat8E4m3fnuz = 18,
  kFloat8E5m2fnuz = 19,
  kFloat8E8m0fnu = 20,
  kComplex32 = 21,
};

// Bytes per element; 0 for a code that is not a type.
size_t element_size(WireType type);

enum class WireLayout : uint8_t { kUndefined = 0, kDense = 1, kSparseCoo = 2 };
enum class WireFormat : uint8_t { kContiguous = 0, kChannelsLast = 1, kChannelsLast3d = 2 };

struct TensorHeader {
  static constexpr size_t kMaxDimensions = 64;
  // Up to this size a tensor travels inside the body instead of as a payload.
  static constexpr size_t kInlineBytes = 2048;

  WireType type = WireType::kFloat32;
  WireLayout layout = WireLayout::kDense;
  WireFormat format = WireFormat::kContiguous;
  bool coalesced = false;      // sparse only
  std::vector<int64_t> sizes;  // of the whole tensor
  int64_t sparse_dimensions = 0;
  int64_t nnz = 0;

  // Filled by parsing and by encoding.
  std::string_view inlined;  // the bytes, if they are in the body
  size_t first_payload = 0;  // index of the first payload otherwise
  size_t payload_count = 0;
};

// Bounds the memory that a message's tensors take beside their elements, since a scalar of a few
// bytes becomes objects of hundreds. They may take kFree, and kPerByte for each byte of their
// headers, inlined elements and payloads. So 65,536 dense tensors are always allowed, and any
// number of tensors with 34 bytes or more each on the wire.
struct TensorBudget {
  static constexpr size_t kTensor = 512;  // tensor, storage, header and their allocations, at most
  static constexpr size_t kUndefined = 128;
  static constexpr size_t kDimension = 24;  // its size and stride, and the header's size
  static constexpr size_t kFree = 65536 * kTensor;
  static constexpr size_t kPerByte = 16;

  static size_t cost_of(const TensorHeader& header);
  // InvalidArgument if tensors of this cost are too much for so many bytes.
  static absl::Status check(size_t cost, size_t bytes);
};

// Appends the header (and, if `inlined` is set, the bytes) to `body`.
void append_tensor_header(const TensorHeader& header, bool is_inlined, std::string& body);

// Parses headers until `text` ends. `payload_sizes` must be used up exactly. Views into `text`.
absl::StatusOr<std::vector<TensorHeader>> parse_tensor_headers(
    std::string_view text, std::span<const size_t> payload_sizes);

}  // namespace weft
