#include "weft/rpc/transport/tensor_header.h"

#include <cstring>
#include <numeric>

#include "absl/status/status.h"
#include "absl/strings/str_cat.h"
#include "weft/base/status.h"

namespace weft {
namespace {

constexpr uint8_t kInlinedFlag = 1;
constexpr uint8_t kCoalescedFlag = 2;
constexpr int64_t kMaxSize = int64_t{1} << 40;
constexpr size_t kMaxBytes = size_t{1} << 46;

template <class T>
void put(std::string& out, T value) {
  out.append(reinterpret_cast<const char*>(&value), sizeof(value));
}

class Parser {
 public:
  Parser(std::string_view text, std::span<const size_t> payload_sizes)
      : text_(text),
        payload_sizes_(payload_sizes),
        bytes_(std::accumulate(payload_sizes.begin(), payload_sizes.end(), text.size())) {}

  absl::StatusOr<std::vector<TensorHeader>> run() {
    std::vector<TensorHeader> headers;
    while (position_ < text_.size()) {
      TensorHeader header;
      if (absl::Status status = parse(header); !status.ok()) {
        return absl::InvalidArgumentError(
            absl::StrCat("tensor ", headers.size(), " of the message: ", status.message()));
      }
      cost_ += TensorBudget::cost_of(header);
      if (absl::Status fits = TensorBudget::check(cost_, bytes_); !fits.ok()) return fits;
      headers.push_back(std::move(header));
    }
    if (next_payload_ != payload_sizes_.size()) {
      return absl::InvalidArgumentError(absl::StrCat("the message has ", payload_sizes_.size(),
                                                     " payloads, its tensors use ", next_payload_));
    }
    return headers;
  }

 private:
  template <class T>
  bool take(T& value) {
    if (text_.size() - position_ < sizeof(T)) return false;
    std::memcpy(&value, text_.data() + position_, sizeof(T));
    position_ += sizeof(T);
    return true;
  }

  static absl::Status bad(std::string_view what) {
    return absl::InvalidArgumentError(absl_view(what));
  }

  // The product of `sizes`, times `unit`; an error if it exceeds kMaxBytes. Sizes beside a zero
  // count too, because strides are computed from them.
  static absl::StatusOr<size_t> bytes_of(std::span<const int64_t> sizes, size_t unit) {
    bool empty = false;
    size_t bytes = unit;
    for (int64_t size : sizes) {
      if (size == 0) {
        empty = true;
        continue;
      }
      if (__builtin_mul_overflow(bytes, static_cast<size_t>(size), &bytes) || bytes > kMaxBytes) {
        return bad("its sizes multiply to more bytes than a tensor may have");
      }
    }
    return empty ? 0 : bytes;
  }

  absl::Status parse(TensorHeader& header) {
    uint8_t type = 0, layout = 0, format = 0, flags = 0, dimensions = 0;
    if (!take(type) || !take(layout) || !take(format) || !take(flags) || !take(dimensions)) {
      return bad("the header is truncated");
    }
    header.type = static_cast<WireType>(type);
    header.layout = static_cast<WireLayout>(layout);
    header.format = static_cast<WireFormat>(format);
    header.coalesced = (flags & kCoalescedFlag) != 0;
    if (layout > static_cast<uint8_t>(WireLayout::kSparseCoo)) {
      return bad(absl::StrCat("layout ", layout, " is unknown"));
    }
    if ((flags & ~(kInlinedFlag | kCoalescedFlag)) != 0) return bad("unknown flags");
    if (header.layout == WireLayout::kUndefined) {
      if (type != 0 || format != 0 || flags != 0 || dimensions != 0) {
        return bad("an undefined tensor has no type, format or sizes");
      }
      return absl::OkStatus();
    }
    const size_t unit = element_size(header.type);
    if (unit == 0) return bad(absl::StrCat("dtype ", type, " is unknown"));
    if (format > static_cast<uint8_t>(WireFormat::kChannelsLast3d)) {
      return bad(absl::StrCat("memory format ", format, " is unknown"));
    }
    if (dimensions > TensorHeader::kMaxDimensions) {
      return bad(absl::StrCat(dimensions, " dimensions exceed ", TensorHeader::kMaxDimensions));
    }
    if ((header.format == WireFormat::kChannelsLast && dimensions != 4) ||
        (header.format == WireFormat::kChannelsLast3d && dimensions != 5)) {
      return bad(
          absl::StrCat("memory format ", format, " does not fit ", dimensions, " dimensions"));
    }
    header.sizes.resize(dimensions);
    for (size_t i = 0; i < dimensions; ++i) {
      if (!take(header.sizes[i])) return bad("the header is truncated");
      if (header.sizes[i] < 0 || header.sizes[i] > kMaxSize) {
        return bad(absl::StrCat("size ", i, " is ", header.sizes[i]));
      }
    }
    if (header.layout == WireLayout::kDense) return parse_dense(header, unit, flags);
    return parse_sparse(header, unit, flags);
  }

  absl::Status parse_dense(TensorHeader& header, size_t unit, uint8_t flags) {
    if (header.coalesced) return bad("a dense tensor cannot be coalesced");
    auto bytes = bytes_of(header.sizes, unit);
    if (!bytes.ok()) return bytes.status();
    if ((flags & kInlinedFlag) == 0) return take_payload(header, *bytes);
    if (*bytes > TensorHeader::kInlineBytes) return bad("it is too large to be inlined");
    if (text_.size() - position_ < *bytes) return bad("its inlined bytes are truncated");
    header.inlined = text_.substr(position_, *bytes);
    position_ += *bytes;
    return absl::OkStatus();
  }

  absl::Status parse_sparse(TensorHeader& header, size_t unit, uint8_t flags) {
    if ((flags & kInlinedFlag) != 0) return bad("a sparse tensor cannot be inlined");
    if (header.format != WireFormat::kContiguous) return bad("a sparse tensor has no format");
    uint8_t sparse = 0;
    if (!take(sparse) || !take(header.nnz)) return bad("the header is truncated");
    if (sparse > header.sizes.size()) {
      return bad(absl::StrCat(sparse, " sparse dimensions of ", header.sizes.size()));
    }
    if (header.nnz < 0 || header.nnz > kMaxSize) return bad(absl::StrCat("nnz is ", header.nnz));
    header.sparse_dimensions = sparse;
    const int64_t index_sizes[] = {sparse, header.nnz};
    auto index_bytes = bytes_of(index_sizes, sizeof(int64_t));
    if (!index_bytes.ok()) return index_bytes.status();
    std::vector<int64_t> value_sizes = {header.nnz};
    value_sizes.insert(value_sizes.end(), header.sizes.begin() + sparse, header.sizes.end());
    auto value_bytes = bytes_of(value_sizes, unit);
    if (!value_bytes.ok()) return value_bytes.status();
    auto whole = bytes_of(header.sizes, 1);
    if (!whole.ok()) return whole.status();
    if (absl::Status status = take_payload(header, *index_bytes); !status.ok()) return status;
    return take_payload(header, *value_bytes);
  }

  absl::Status take_payload(TensorHeader& header, size_t bytes) {
    if (next_payload_ >= payload_sizes_.size()) return bad("its payload is missing");
    if (payload_sizes_[next_payload_] != bytes) {
      return bad(absl::StrCat("its sizes need ", bytes, " bytes, its payload has ",
                              payload_sizes_[next_payload_]));
    }
    if (header.payload_count++ == 0) header.first_payload = next_payload_;
    ++next_payload_;
    return absl::OkStatus();
  }

  const std::string_view text_;
  const std::span<const size_t> payload_sizes_;
  const size_t bytes_;  // of `text` and of all payloads
  size_t cost_ = 0;     // of the tensors parsed so far
  size_t position_ = 0;
  size_t next_payload_ = 0;
};

}  // namespace

size_t element_size(WireType type) {
  switch (type) {
    case WireType::kUint8:
    case WireType::kInt8:
    case WireType::kBool:
    case WireType::kFloat8E4m3fn:
    case WireType::kFloat8E5m2:
    case WireType::kFloat8E4m3fnuz:
    case WireType::kFloat8E5m2fnuz:
    case WireType::kFloat8E8m0fnu:
      return 1;
    case WireType::kInt16:
    case WireType::kFloat16:
    case WireType::kBFloat16:
    case WireType::kUint16:
      return 2;
    case WireType::kInt32:
    case WireType::kFloat32:
    case WireType::kUint32:
    case WireType::kComplex32:
      return 4;
    case WireType::kInt64:
    case WireType::kFloat64:
    case WireType::kComplex64:
    case WireType::kUint64:
      return 8;
    case WireType::kComplex128:
      return 16;
  }
  return 0;
}

size_t TensorBudget::cost_of(const TensorHeader& header) {
  if (header.layout == WireLayout::kUndefined) return kUndefined;
  // A sparse tensor holds two dense ones: its indices and its values.
  const size_t tensors = header.layout == WireLayout::kSparseCoo ? 3 : 1;
  return tensors * kTensor + kDimension * header.sizes.size();
}

absl::Status TensorBudget::check(size_t cost, size_t bytes) {
  if (cost <= kFree || (cost - kFree) / kPerByte <= bytes) return absl::OkStatus();
  return absl::InvalidArgumentError(absl::StrCat(
      "the message's tensors would take too much memory: ", cost,
      " bytes or more beside their elements (", kTensor, " for each). A message may take ", kFree,
      ", and ", kPerByte, " for each of its bytes; send many small tensors as one"));
}

void append_tensor_header(const TensorHeader& header, bool is_inlined, std::string& body) {
  const bool undefined = header.layout == WireLayout::kUndefined;
  put(body, undefined ? uint8_t{0} : static_cast<uint8_t>(header.type));
  put(body, static_cast<uint8_t>(header.layout));
  put(body, static_cast<uint8_t>(header.format));
  put(body, static_cast<uint8_t>((is_inlined ? kInlinedFlag : 0) |
                                 (header.coalesced ? kCoalescedFlag : 0)));
  put(body, static_cast<uint8_t>(header.sizes.size()));
  for (int64_t size : header.sizes) put(body, size);
  if (header.layout == WireLayout::kSparseCoo) {
    put(body, static_cast<uint8_t>(header.sparse_dimensions));
    put(body, header.nnz);
  }
  if (is_inlined) body.append(header.inlined);
}

absl::StatusOr<std::vector<TensorHeader>> parse_tensor_headers(
    std::string_view text, std::span<const size_t> payload_sizes) {
  return Parser(text, payload_sizes).run();
}

}  // namespace weft
