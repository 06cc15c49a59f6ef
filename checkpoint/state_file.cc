#include "weft/checkpoint/state_file.h"

#include <algorithm>
#include <bit>
#include <cstdint>
#include <optional>
#include <string_view>
#include <utility>
#include <vector>

#include <ATen/ops/empty.h>
#include <c10/core/ScalarType.h>

#include "absl/strings/str_cat.h"
#include "weft/base/status.h"
#include "weft/checkpoint/atomic_file.h"
#include "weft/checkpoint/internal/regular_file.h"
#include "weft/checkpoint/internal/safetensors_header.h"

namespace weft {
namespace {

using checkpoint_internal::RegularFile;
using checkpoint_internal::SafetensorsHeader;
using checkpoint_internal::shown;
using checkpoint_internal::StateDtype;
using checkpoint_internal::TensorEntry;

static_assert(std::endian::native == std::endian::little, "the format is little-endian");

struct DtypePair {
  StateDtype file;
  at::ScalarType memory;
};
constexpr DtypePair kDtypePairs[] = {
    {StateDtype::kF64, at::kDouble},
    {StateDtype::kF32, at::kFloat},
    {StateDtype::kF16, at::kHalf},
    {StateDtype::kBF16, at::kBFloat16},
    {StateDtype::kI64, at::kLong},
    {StateDtype::kI32, at::kInt},
    {StateDtype::kI16, at::kShort},
    {StateDtype::kI8, at::kChar},
    {StateDtype::kU8, at::kByte},
    {StateDtype::kBool, at::kBool},
    {StateDtype::kU64, at::kUInt64},
    {StateDtype::kU32, at::kUInt32},
    {StateDtype::kU16, at::kUInt16},
    {StateDtype::kF8E4M3, at::kFloat8_e4m3fn},
    {StateDtype::kF8E5M2, at::kFloat8_e5m2},
    {StateDtype::kF8E8M0, at::kFloat8_e8m0fnu},
};

std::optional<StateDtype> file_dtype(at::ScalarType memory) {
  for (const DtypePair& pair : kDtypePairs) {
    if (pair.memory == memory) return pair.file;
  }
  return std::nullopt;
}

at::ScalarType memory_dtype(StateDtype file) {
  for (const DtypePair& pair : kDtypePairs) {
    if (pair.file == file) return pair.memory;
  }
  return at::kByte;  // not reached: the table has every StateDtype
}

// Returns the tensor in the form that the file holds: on the CPU and contiguous.
absl::StatusOr<at::Tensor> plain(const std::string& name, const at::Tensor& tensor) {
  const auto refuse = [&name](auto... why) {
    return absl::InvalidArgumentError(absl::StrCat("tensor ", shown(name), " ", why...));
  };
  if (!tensor.defined()) return refuse("is undefined");
  if (tensor.layout() != at::kStrided || tensor.is_quantized() || tensor.is_meta()) {
    return refuse("is not a dense tensor with data");
  }
  if (!file_dtype(tensor.scalar_type())) {
    return refuse("has dtype ", c10::toString(tensor.scalar_type()), ", which the format lacks");
  }
  if (tensor.dim() > static_cast<int64_t>(checkpoint_internal::kMaxDimensions)) {
    return refuse("has more than 64 dimensions");
  }
  return tensor.detach().to(at::kCPU).resolve_neg().contiguous();
}

struct Item {
  TensorEntry entry;
  at::Tensor tensor;
};

// Tensors with wide elements come first, so every tensor starts at a multiple of its element size.
absl::StatusOr<std::vector<Item>> lay_out(const TensorMap& tensors) {
  std::vector<Item> items;
  for (const auto& [name, tensor] : tensors) {
    WEFT_ASSIGN_OR_RETURN(at::Tensor data, plain(name, tensor));
    TensorEntry entry;
    entry.name = name;
    entry.dtype = *file_dtype(data.scalar_type());
    entry.shape = data.sizes().vec();
    items.push_back({std::move(entry), std::move(data)});
  }
  std::stable_sort(items.begin(), items.end(), [](const Item& a, const Item& b) {
    return bytes_per_element(a.entry.dtype) > bytes_per_element(b.entry.dtype);
  });
  uint64_t offset = 0;
  for (Item& item : items) {
    item.entry.begin = offset;
    offset += item.tensor.nbytes();
    item.entry.end = offset;
  }
  return items;
}

absl::Status fill(at::Tensor& tensor, const TensorEntry& entry, RegularFile& file) {
  const size_t bytes = entry.end - entry.begin;
  if (bytes == 0) return absl::OkStatus();
  void* data = tensor.mutable_data_ptr();
  absl::Status read = file.read(data, bytes);
  if (!read.ok()) return prepend(absl::StrCat("tensor ", shown(entry.name), ": "), read);
  if (entry.dtype == StateDtype::kBool) {
    const uint8_t* values = static_cast<const uint8_t*>(data);
    if (std::any_of(values, values + bytes, [](uint8_t value) { return value > 1; })) {
      return absl::DataLossError(absl::StrCat(file.path(), ": tensor ", shown(entry.name),
                                              ": a BOOL element is neither 0 nor 1"));
    }
  }
  return absl::OkStatus();
}

}  // namespace

absl::Status save_tensors(const std::string& path, const TensorMap& tensors,
                          const Metadata& metadata, const FileCalls& calls) {
  const std::string place = absl::StrCat("cannot save ", path, ": ");
  absl::StatusOr<std::vector<Item>> items = lay_out(tensors);
  if (!items.ok()) return prepend(place, items.status());
  SafetensorsHeader header;
  header.metadata = metadata;
  for (const Item& item : *items) header.tensors.push_back(item.entry);
  absl::StatusOr<std::string> text = render_header(header);
  if (!text.ok()) return prepend(place, text.status());

  WEFT_ASSIGN_OR_RETURN(AtomicFile file, AtomicFile::create(path, calls));
  WEFT_RETURN_IF_ERROR(file.append(*text));
  for (const Item& item : *items) {
    const char* data = static_cast<const char*>(item.tensor.const_data_ptr());
    WEFT_RETURN_IF_ERROR(file.append(std::string_view(data, item.tensor.nbytes())));
  }
  return file.commit();
}

absl::StatusOr<StateFile> load_tensors(const std::string& path) {
  const std::string place = absl::StrCat(path, ": ");
  WEFT_ASSIGN_OR_RETURN(RegularFile file, RegularFile::open(path, RegularFile::Links::kFollow));
  if (file.size() < 8) {
    return absl::DataLossError(absl::StrCat(place, "has ", file.size(), " bytes, not even 8"));
  }
  unsigned char length_bytes[8];
  WEFT_RETURN_IF_ERROR(file.read(length_bytes, sizeof(length_bytes)));
  absl::StatusOr<uint64_t> length =
      checkpoint_internal::parse_header_length(length_bytes, file.size());
  if (!length.ok()) return prepend(place, length.status());
  std::string json(*length, '\0');
  WEFT_RETURN_IF_ERROR(file.read(json.data(), json.size()));
  absl::StatusOr<SafetensorsHeader> header =
      checkpoint_internal::parse_header(json, file.size() - 8 - *length);
  if (!header.ok()) return prepend(place, header.status());

  StateFile state;
  state.metadata = std::move(header->metadata);
  for (const TensorEntry& entry : header->tensors) {
    // The tensor is no larger than the file: parse_header checked the offsets against its size.
    at::Tensor tensor = at::empty(entry.shape, memory_dtype(entry.dtype));
    WEFT_RETURN_IF_ERROR(fill(tensor, entry, file));
    state.tensors.emplace(entry.name, std::move(tensor));
  }
  return state;
}

}  // namespace weft
