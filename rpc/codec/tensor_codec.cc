#include "weft/rpc/codec/tensor_codec.h"

#include <cstring>
#include <optional>
#include <utility>

#include <ATen/Context.h>
#include <ATen/EmptyTensor.h>
#include <ATen/ops/_sparse_coo_tensor_unsafe.h>
#include <ATen/ops/empty.h>
#include <ATen/ops/from_blob.h>
#include <c10/core/ScalarType.h>

#include "absl/strings/str_cat.h"
#include "weft/base/status.h"
#include "weft/rpc/transport/tensor_header.h"

namespace weft {
namespace {

constexpr std::pair<at::ScalarType, WireType> kTypes[] = {
    {at::kByte, WireType::kUint8},
    {at::kChar, WireType::kInt8},
    {at::kShort, WireType::kInt16},
    {at::kInt, WireType::kInt32},
    {at::kLong, WireType::kInt64},
    {at::kHalf, WireType::kFloat16},
    {at::kFloat, WireType::kFloat32},
    {at::kDouble, WireType::kFloat64},
    {at::kComplexFloat, WireType::kComplex64},
    {at::kComplexDouble, WireType::kComplex128},
    {at::kBool, WireType::kBool},
    {at::kBFloat16, WireType::kBFloat16},
    {at::kUInt16, WireType::kUint16},
    {at::kUInt32, WireType::kUint32},
    {at::kUInt64, WireType::kUint64},
    {at::kFloat8_e4m3fn, WireType::kFloat8E4m3fn},
    {at::kFloat8_e5m2, WireType::kFloat8E5m2},
    {at::kFloat8_e4m3fnuz, WireType::kFloat8E4m3fnuz},
    {at::kFloat8_e5m2fnuz, WireType::kFloat8E5m2fnuz},
    {at::kFloat8_e8m0fnu, WireType::kFloat8E8m0fnu},
    {at::kComplexHalf, WireType::kComplex32},
};

std::optional<WireType> wire_type(at::ScalarType type) {
  for (const auto& [scalar, wire] : kTypes) {
    if (scalar == type) return wire;
  }
  return std::nullopt;
}

at::ScalarType scalar_type(WireType type) {
  for (const auto& [scalar, wire] : kTypes) {
    if (wire == type) return scalar;
  }
  return at::ScalarType::Undefined;  // not reached: the parser refuses other codes
}

absl::Status bad(size_t index, std::string_view what) {
  return absl::InvalidArgumentError(
      absl::StrCat("tensor ", index, " of the message ", absl_view(what)));
}

constexpr int64_t kSmall = 128;  // tensors with up to so many elements are copied one by one

// Copies a small tensor into dense order, without LibTorch's dispatcher.
at::Tensor small_in_order(const at::Tensor& tensor) {
  at::Tensor copy = at::detail::empty_cpu(tensor.sizes(), tensor.scalar_type());
  const size_t item = tensor.element_size();
  const auto* from = static_cast<const char*>(tensor.const_data_ptr());
  auto* to = static_cast<char*>(copy.mutable_data_ptr());
  c10::SmallVector<int64_t, 5> index(tensor.dim(), 0);
  for (int64_t left = tensor.numel(); left > 0; --left, to += item) {
    std::memcpy(to, from, item);
    for (int64_t d = tensor.dim() - 1; d >= 0; --d) {
      if (tensor.size(d) == 1) continue;  // the stride of such a dimension has no meaning
      const int64_t step = tensor.stride(d) * static_cast<int64_t>(item);
      from += step;
      if (++index[d] < tensor.size(d)) break;
      from -= step * index[d];
      index[d] = 0;
    }
  }
  return copy;
}

// Returns the tensor contiguous in one of the wire formats, without lazy conjugation or negation.
at::Tensor in_wire_order(const at::Tensor& tensor, WireFormat& format) {
  at::Tensor plain = tensor;
  if (plain.is_conj()) plain = plain.resolve_conj();
  if (plain.is_neg()) plain = plain.resolve_neg();
  if (plain._is_zerotensor()) plain = plain.clone();  // such zeros have no memory
  format = WireFormat::kContiguous;
  if (plain.is_contiguous()) return plain;
  if (plain.dim() == 4 && plain.is_contiguous(at::MemoryFormat::ChannelsLast)) {
    format = WireFormat::kChannelsLast;
    return plain;
  }
  if (plain.dim() == 5 && plain.is_contiguous(at::MemoryFormat::ChannelsLast3d)) {
    format = WireFormat::kChannelsLast3d;
    return plain;
  }
  return plain.numel() <= kSmall ? small_in_order(plain) : plain.contiguous();
}

// What those may do who have the memory of a tensor too.
enum class Others {
  kWrite,
  kRead,
  kNothing,  // nobody else has it, or nobody else uses it
};

Others others_of(const at::Tensor& tensor, const TensorSendOptions& options) {
  if (options.give) return Others::kNothing;
  if (tensor.is_view()) return Others::kWrite;
  const size_t handles = tensor.use_count();
  return handles == 1                 ? Others::kNothing
         : handles <= options.holders ? Others::kRead
                                      : Others::kWrite;
}

// Makes a payload of a contiguous tensor.
Payload payload_of(at::Tensor tensor, Others others, const TensorSendOptions& options) {
  const size_t bytes = tensor.nbytes();
  if (others == Others::kWrite && bytes <= options.copy_up_to) {
    if (options.copy && bytes >= TensorSendOptions::kLeastCopied) {
      const auto* data = static_cast<const std::byte*>(tensor.const_data_ptr());
      if (std::optional<Payload> copy = options.copy(data, bytes)) return *std::move(copy);
    }
    tensor = tensor.clone();
    others = Others::kNothing;
  }
  auto owner = std::make_shared<at::Tensor>(std::move(tensor));
  auto* const data = static_cast<std::byte*>(owner->data_ptr());
  return {
      .data = data, .size = bytes, .owner = std::move(owner), .given = others == Others::kNothing};
}

absl::Status encode_dense(const at::Tensor& tensor, Others others, const TensorSendOptions& options,
                          TensorHeader& header, Frame& frame) {
  at::Tensor plain = in_wire_order(tensor, header.format);
  const size_t bytes = plain.nbytes();
  const bool is_inlined = bytes <= TensorHeader::kInlineBytes;
  if (is_inlined) {
    header.inlined = std::string_view(static_cast<const char*>(plain.const_data_ptr()), bytes);
    append_tensor_header(header, true, frame.body);
    return absl::OkStatus();
  }
  append_tensor_header(header, false, frame.body);
  if (!plain.is_same(tensor)) {
    others = Others::kNothing;  // a copy was made above
  } else if (plain.storage().use_count() > 1 && !options.give) {
    others = Others::kWrite;
  }
  frame.payloads.push_back(payload_of(std::move(plain), others, options));
  return absl::OkStatus();
}

absl::Status encode_sparse(const at::Tensor& tensor, const TensorSendOptions& options,
                           TensorHeader& header, Frame& frame) {
  header.sparse_dimensions = tensor.sparse_dim();
  header.nnz = tensor._nnz();
  header.coalesced = tensor.is_coalesced();
  append_tensor_header(header, false, frame.body);
  for (const at::Tensor& part : {tensor._indices(), tensor._values()}) {
    at::Tensor plain = part.contiguous();
    const Others others = !plain.is_same(part) || options.give ? Others::kNothing : Others::kWrite;
    frame.payloads.push_back(payload_of(std::move(plain), others, options));
  }
  return absl::OkStatus();
}

absl::Status encode_one(size_t index, at::Tensor tensor, const TensorSendOptions& options,
                        Frame& frame, size_t& cost) {
  TensorHeader header;
  if (!tensor.defined()) {
    header.layout = WireLayout::kUndefined;
    cost += TensorBudget::cost_of(header);
    append_tensor_header(header, false, frame.body);
    return absl::OkStatus();
  }
  if (!tensor.is_cpu()) {
    return bad(index, absl::StrCat("is on ", tensor.device().str(),
                                   ", and no device map says where it goes"));
  }
  const std::optional<WireType> type = wire_type(tensor.scalar_type());
  if (!type || tensor.is_quantized()) {
    return bad(index, absl::StrCat("has dtype ", c10::toString(tensor.scalar_type()),
                                   ", which cannot be sent"));
  }
  if (tensor.dim() > static_cast<int64_t>(TensorHeader::kMaxDimensions)) {
    return bad(index, absl::StrCat("has ", tensor.dim(), " dimensions"));
  }
  header.type = *type;
  header.sizes.assign(tensor.sizes().begin(), tensor.sizes().end());
  const Others others = others_of(tensor, options);
  if (tensor.layout() == at::kSparse) {
    header.layout = WireLayout::kSparseCoo;
    cost += TensorBudget::cost_of(header);
    return encode_sparse(tensor, options, header, frame);
  }
  if (tensor.layout() != at::kStrided || tensor.is_nested()) {
    return bad(index, "is neither dense nor sparse COO");
  }
  cost += TensorBudget::cost_of(header);
  return encode_dense(tensor, others, options, header, frame);
}

at::Tensor adopt(const Payload& payload, at::IntArrayRef sizes, at::ScalarType type) {
  const at::TensorOptions options = at::TensorOptions().dtype(type);
  if (payload.size == 0) return at::empty(sizes, options);
  return at::from_blob(
      payload.data, sizes, [owner = payload.owner](void*) {}, options);
}

// The same for values that are checked. The sender may still write to lent memory after the check,
// so they are copied before it.
at::Tensor adopt_checked(const Payload& payload, at::IntArrayRef sizes, at::ScalarType type) {
  at::Tensor tensor = adopt(payload, sizes, type);
  return payload.lent ? tensor.clone() : tensor;
}

at::Tensor adopt_values(const Payload& payload, at::IntArrayRef sizes, WireType type) {
  return type == WireType::kBool ? adopt_checked(payload, sizes, scalar_type(type))
                                 : adopt(payload, sizes, scalar_type(type));
}

at::Tensor in_format(at::Tensor tensor, const TensorHeader& header) {
  // The bytes are in the order of the format, so a permuted view has the right elements.
  switch (header.format) {
    case WireFormat::kContiguous:
      return tensor;
    case WireFormat::kChannelsLast: {
      const auto& s = header.sizes;
      return tensor.view({s[0], s[2], s[3], s[1]}).permute({0, 3, 1, 2});
    }
    case WireFormat::kChannelsLast3d: {
      const auto& s = header.sizes;
      return tensor.view({s[0], s[2], s[3], s[4], s[1]}).permute({0, 4, 1, 2, 3});
    }
  }
  return tensor;
}

absl::Status check_bools(size_t index, const TensorHeader& header, const at::Tensor& values) {
  if (header.type != WireType::kBool) return absl::OkStatus();
  const auto* bytes = static_cast<const uint8_t*>(values.const_data_ptr());
  for (size_t i = 0; i < values.nbytes(); ++i) {
    if (bytes[i] > 1) return bad(index, absl::StrCat("holds a bool of value ", bytes[i]));
  }
  return absl::OkStatus();
}

// Refuses a false "coalesced" flag. LibTorch's kernels rely on it: they search such indices, and
// merge them.
absl::Status check_coalesced(size_t index, const TensorHeader& header, const int64_t* positions) {
  for (int64_t i = 1; header.coalesced && i < header.nnz; ++i) {
    bool ascends = false;
    for (int64_t d = 0; d < header.sparse_dimensions && !ascends; ++d) {
      const int64_t* at = positions + d * header.nnz + i;
      if (at[0] < at[-1]) break;
      ascends = at[0] > at[-1];
    }
    if (!ascends) return bad(index, "says it is coalesced, but its indices do not ascend");
  }
  return absl::OkStatus();
}

absl::StatusOr<at::Tensor> decode_sparse(size_t index, const TensorHeader& header,
                                         const Frame& frame) {
  at::Tensor indices = adopt_checked(frame.payloads[header.first_payload],
                                     {header.sparse_dimensions, header.nnz}, at::kLong);
  std::vector<int64_t> value_sizes = {header.nnz};
  value_sizes.insert(value_sizes.end(), header.sizes.begin() + header.sparse_dimensions,
                     header.sizes.end());
  at::Tensor values =
      adopt_values(frame.payloads[header.first_payload + 1], value_sizes, header.type);
  if (absl::Status status = check_bools(index, header, values); !status.ok()) return status;
  const auto* position = static_cast<const int64_t*>(indices.const_data_ptr());
  WEFT_RETURN_IF_ERROR(check_coalesced(index, header, position));
  for (int64_t d = 0; d < header.sparse_dimensions; ++d) {
    for (int64_t i = 0; i < header.nnz; ++i, ++position) {
      if (*position < 0 || *position >= header.sizes[d]) {
        return bad(index, absl::StrCat("has index ", *position, " in dimension ", d, " of size ",
                                       header.sizes[d]));
      }
    }
  }
  // The constructor checks nothing; the checks above have done it.
  return at::_sparse_coo_tensor_unsafe(indices, values, header.sizes,
                                       values.options().layout(at::kSparse), header.coalesced);
}

absl::StatusOr<at::Tensor> decode_one(size_t index, const TensorHeader& header,
                                      const Frame& frame) {
  switch (header.layout) {
    case WireLayout::kUndefined:
      return at::Tensor();
    case WireLayout::kSparseCoo:
      return decode_sparse(index, header, frame);
    case WireLayout::kDense:
      break;
  }
  at::Tensor tensor;
  if (header.payload_count == 0) {
    // Without the dispatcher, because this is always a plain CPU tensor.
    tensor = at::detail::empty_cpu(header.sizes, scalar_type(header.type));
    if (!header.inlined.empty()) {
      std::memcpy(tensor.data_ptr(), header.inlined.data(), header.inlined.size());
    }
  } else {
    tensor = adopt_values(frame.payloads[header.first_payload], header.sizes, header.type);
  }
  if (absl::Status status = check_bools(index, header, tensor); !status.ok()) return status;
  return in_format(std::move(tensor), header);
}

}  // namespace

absl::Status encode_tensors(std::vector<at::Tensor> tensors, const TensorSendOptions& options,
                            Frame& frame) {
  frame.header.value_bytes = static_cast<uint32_t>(frame.body.size());
  size_t cost = 0;
  for (size_t i = 0; i < tensors.size(); ++i) {
    absl::Status status = encode_one(i, std::move(tensors[i]), options, frame, cost);
    if (!status.ok()) return status;
  }
  return TensorBudget::check(cost,
                             frame.body.size() - frame.header.value_bytes + frame.payload_bytes());
}

absl::StatusOr<std::vector<at::Tensor>> decode_tensors(const Frame& frame) {
  std::vector<size_t> sizes;
  sizes.reserve(frame.payloads.size());
  for (const Payload& payload : frame.payloads) sizes.push_back(payload.size);
  auto headers =
      parse_tensor_headers(std::string_view(frame.body).substr(frame.header.value_bytes), sizes);
  if (!headers.ok()) return headers.status();
  std::vector<at::Tensor> tensors;
  tensors.reserve(headers->size());
  for (size_t i = 0; i < headers->size(); ++i) {
    auto tensor = decode_one(i, (*headers)[i], frame);
    if (!tensor.ok()) return tensor.status();
    tensors.push_back(*std::move(tensor));
  }
  return tensors;
}

}  // namespace weft
