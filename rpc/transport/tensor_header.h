// Encodes and parses the headers that describe a message's tensors: type, layout and sizes. The
// parser checks every field.
//
// Thread safety: pure functions on plain values.
// Errors: InvalidArgument, which names the tensor's position and the field. No memory is allocated
// for elements only because a header asks for it. The parser multiplies sizes with overflow checks,
// and the product must equal the bytes that came. TensorBudget limits what tensors cost beside
// their elements.
// Wire: integers are little-endian. A header has these fields, in this order:
//
//   u8 dtype   u8 layout   u8 format   u8 flags   u8 dimensions   i64 sizes[dimensions]
//   u8 sparse_dimensions   i64 nnz        (these two: sparse tensors only)
//
// The bytes of an inlined tensor follow its header. Any other dense tensor has one payload. A
// sparse tensor has two: indices i64[sparse_dimensions, nnz], then values. An undefined tensor has
// none. There are no strides: the data is contiguous in the order that `format` names.
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
  // A dense tensor of up to this size may travel inside the body instead of as a payload.
  static constexpr size_t kInlineBytes = 2048;

  WireType type = WireType::kFloat32;
  WireLayout layout = WireLayout::kDense;
  WireFormat format = WireFormat::kContiguous;
  bool coalesced = false;      // sparse only
  std::vector<int64_t> sizes;  // of the whole tensor
  int64_t sparse_dimensions = 0;
  int64_t nnz = 0;

  // The parser fills these; the sender sets `inlined` for append_tensor_header.
  std::string_view inlined;  // the bytes, if they are in the body
  size_t first_payload = 0;  // index of its first payload otherwise
  size_t payload_count = 0;
};

// Limits the memory that a message's tensors take beside their elements, because a scalar of a few
// bytes becomes objects of hundreds of bytes.
//
// A message may take kFree, and kPerByte for each byte of its tensor headers, inlined elements and
// payloads. So 65,536 dense tensors are always allowed. More are allowed if each takes 38 bytes or
// more on the wire (34 bytes if none has more than one dimension).
struct TensorBudget {
  static constexpr size_t kTensor = 512;  // tensor, storage, header and their allocations, at most
  static constexpr size_t kUndefined = 128;
  static constexpr size_t kDimension = 24;  // its size and stride, and the header's size
  static constexpr size_t kFree = 65536 * kTensor;
  static constexpr size_t kPerByte = 16;

  static size_t cost_of(const TensorHeader& header);
  // Returns InvalidArgument if tensors cost too much for a message with so many bytes of them.
  static absl::Status check(size_t cost, size_t bytes);
};

// Appends the header to `body`, and `header.inlined` after it if `is_inlined`.
void append_tensor_header(const TensorHeader& header, bool is_inlined, std::string& body);

// Parses headers up to the end of `text`. The tensors must use all of `payload_sizes`. The result
// has views into `text`.
absl::StatusOr<std::vector<TensorHeader>> parse_tensor_headers(
    std::string_view text, std::span<const size_t> payload_sizes);

}  // namespace weft
