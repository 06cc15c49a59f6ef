#include "weft/checkpoint/internal/safetensors_header.h"

#include <algorithm>
#include <array>
#include <set>
#include <tuple>
#include <utility>

#include <nlohmann/json.hpp>

#include "absl/strings/escaping.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "weft/base/status.h"

namespace weft::checkpoint_internal {
namespace {

struct DtypeRow {
  StateDtype dtype;
  const char* name;
  uint64_t bytes;
};
constexpr std::array<DtypeRow, 16> kDtypes = {{{StateDtype::kF64, "F64", 8},
                                               {StateDtype::kF32, "F32", 4},
                                               {StateDtype::kF16, "F16", 2},
                                               {StateDtype::kBF16, "BF16", 2},
                                               {StateDtype::kI64, "I64", 8},
                                               {StateDtype::kI32, "I32", 4},
                                               {StateDtype::kI16, "I16", 2},
                                               {StateDtype::kI8, "I8", 1},
                                               {StateDtype::kU8, "U8", 1},
                                               {StateDtype::kBool, "BOOL", 1},
                                               {StateDtype::kU64, "U64", 8},
                                               {StateDtype::kU32, "U32", 4},
                                               {StateDtype::kU16, "U16", 2},
                                               {StateDtype::kF8E4M3, "F8_E4M3", 1},
                                               {StateDtype::kF8E5M2, "F8_E5M2", 1},
                                               {StateDtype::kF8E8M0, "F8_E8M0", 1}}};

constexpr size_t kShownCharacters = 80;

// Builds the header from the parser's events and stops the parser at the first fault. It builds no
// JSON document, so a hostile header costs no more memory than its own size.
class HeaderBuilder {
 public:
  using Json = nlohmann::json;

  bool null() { return unexpected("null"); }
  bool boolean(bool) { return unexpected("a boolean"); }
  bool number_integer(Json::number_integer_t) { return unexpected("a negative number"); }
  bool number_float(Json::number_float_t, const std::string&) {
    return unexpected("a number that is no 64-bit integer");
  }
  bool binary(Json::binary_t&) { return unexpected("binary data"); }

  bool number_unsigned(Json::number_unsigned_t value) {
    if (where_ == Where::kShape) {
      if (value > static_cast<uint64_t>(INT64_MAX)) return fault("a dimension exceeds 2^63 - 1");
      if (tensor().shape.size() == kMaxDimensions) return fault("more than 64 dimensions");
      tensor().shape.push_back(static_cast<int64_t>(value));
      return true;
    }
    if (where_ == Where::kOffsets) {
      if (offsets_ == 2) return fault("data_offsets has more than two numbers");
      (offsets_++ == 0 ? tensor().begin : tensor().end) = value;
      return true;
    }
    return unexpected("a number");
  }

  bool string(std::string& value) {
    if (where_ == Where::kMetadata) {
      header_.metadata[key_] = std::move(value);
      return true;
    }
    if (where_ != Where::kTensor || key_ != "dtype") return unexpected("a string");
    const std::optional<StateDtype> dtype = parse_state_dtype(value);
    if (!dtype) return fault(absl::StrCat("unknown dtype ", shown(value)));
    tensor().dtype = *dtype;
    return true;
  }

  bool start_object(size_t) {
    if (where_ == Where::kDocument) {
      where_ = Where::kFile;
    } else if (where_ == Where::kFile && key_ == kMetadataKey) {
      where_ = Where::kMetadata;
    } else if (where_ == Where::kFile) {
      where_ = Where::kTensor;
      header_.tensors.emplace_back().name = key_;
      fields_.clear();
      offsets_ = 0;
    } else {
      return unexpected("an object");
    }
    return true;
  }

  bool key(std::string& value) {
    std::set<std::string>& seen = where_ == Where::kFile       ? names_
                                  : where_ == Where::kMetadata ? metadata_keys_
                                                               : fields_;
    if (where_ == Where::kTensor && value != "dtype" && value != "shape" &&
        value != "data_offsets") {
      return fault(absl::StrCat("unknown field ", shown(value)));
    }
    if (!seen.insert(value).second) return fault(absl::StrCat(shown(value), " appears twice"));
    key_ = std::move(value);
    return true;
  }

  bool end_object() {
    if (where_ == Where::kTensor) {
      for (const char* field : {"dtype", "shape", "data_offsets"}) {
        if (!fields_.contains(field)) return fault(absl::StrCat("no ", field));
      }
    }
    where_ = where_ == Where::kFile ? Where::kDone : Where::kFile;
    return true;
  }

  bool start_array(size_t) {
    if (where_ == Where::kTensor && key_ == "shape") {
      where_ = Where::kShape;
    } else if (where_ == Where::kTensor && key_ == "data_offsets") {
      where_ = Where::kOffsets;
    } else {
      return unexpected("an array");
    }
    return true;
  }

  bool end_array() {
    if (where_ == Where::kOffsets && offsets_ != 2) return fault("data_offsets needs two numbers");
    where_ = Where::kTensor;
    return true;
  }

  bool parse_error(size_t position, const std::string&, const nlohmann::detail::exception&) {
    fault_ = absl::StrCat("the header is not valid JSON at byte ", position);
    return false;
  }

  absl::StatusOr<SafetensorsHeader> finish(bool parsed) && {
    if (!parsed) return absl::DataLossError(fault_);
    return std::move(header_);
  }

 private:
  enum class Where { kDocument, kFile, kMetadata, kTensor, kShape, kOffsets, kDone };

  TensorEntry& tensor() { return header_.tensors.back(); }

  bool fault(std::string_view text) {
    const bool inside =
        where_ == Where::kTensor || where_ == Where::kShape || where_ == Where::kOffsets;
    const std::string place = inside                       ? "tensor " + shown(tensor().name)
                              : where_ == Where::kMetadata ? std::string(kMetadataKey)
                                                           : std::string("the header");
    fault_ = absl::StrCat(place, ": ", absl_view(text));
    return false;
  }
  bool unexpected(std::string_view what) {
    const absl::string_view text(what.data(), what.size());
    if (where_ == Where::kDocument || where_ == Where::kDone) {
      return fault(absl::StrCat("is ", text, ", not one object"));
    }
    return fault(absl::StrCat(shown(key_), " holds ", text));
  }

  SafetensorsHeader header_;
  Where where_ = Where::kDocument;
  std::string key_;
  std::set<std::string> names_;
  std::set<std::string> metadata_keys_;
  std::set<std::string> fields_;  // of the current tensor
  int offsets_ = 0;
  std::string fault_;
};

// Checks that the tensors cover the data exactly. A gap could hide bytes, and with an overlap two
// tensors would share bytes.
absl::Status check_places(std::vector<TensorEntry>& tensors, uint64_t data_bytes) {
  std::sort(tensors.begin(), tensors.end(), [](const TensorEntry& a, const TensorEntry& b) {
    return std::tie(a.begin, a.end, a.name) < std::tie(b.begin, b.end, b.name);
  });
  uint64_t reached = 0;
  for (const TensorEntry& tensor : tensors) {
    const auto fault = [&tensor](auto... text) {
      return absl::DataLossError(absl::StrCat("tensor ", shown(tensor.name), ": ", text...));
    };
    if (tensor.begin > tensor.end) return fault("data_offsets run backwards");
    if (tensor.end > data_bytes) {
      return fault("data_offsets end at ", tensor.end, ", the file has ", data_bytes, " bytes");
    }
    if (tensor.begin < reached) return fault("overlaps another tensor");
    if (tensor.begin > reached) return fault(tensor.begin - reached, " unused bytes before it");
    const std::optional<uint64_t> bytes = checked_bytes(tensor.dtype, tensor.shape);
    if (!bytes) return fault("its size overflows");
    if (*bytes != tensor.end - tensor.begin) {
      return fault("dtype and shape need ", *bytes, " bytes, data_offsets give ",
                   tensor.end - tensor.begin);
    }
    reached = tensor.end;
  }
  if (reached != data_bytes) {
    return absl::DataLossError(
        absl::StrCat(data_bytes - reached, " bytes after the last tensor belong to none"));
  }
  return absl::OkStatus();
}

// The JSON text of a string, or nothing if the string is not UTF-8.
std::optional<std::string> json_string(const std::string& text) {
  try {
    return nlohmann::json(text).dump();
  } catch (const nlohmann::json::type_error&) {
    return std::nullopt;
  }
}

}  // namespace

std::string_view to_string(StateDtype dtype) { return kDtypes[static_cast<size_t>(dtype)].name; }

uint64_t bytes_per_element(StateDtype dtype) { return kDtypes[static_cast<size_t>(dtype)].bytes; }

std::optional<StateDtype> parse_state_dtype(std::string_view name) {
  for (const DtypeRow& row : kDtypes) {
    if (name == row.name) return row.dtype;
  }
  return std::nullopt;
}

std::optional<uint64_t> checked_bytes(StateDtype dtype, const std::vector<int64_t>& shape) {
  int64_t bytes = static_cast<int64_t>(bytes_per_element(dtype));
  bool empty = false;
  for (const int64_t dimension : shape) {
    if (dimension < 0) return std::nullopt;
    empty |= dimension == 0;
    if (__builtin_mul_overflow(bytes, std::max<int64_t>(dimension, 1), &bytes)) return std::nullopt;
  }
  return empty ? 0 : static_cast<uint64_t>(bytes);
}

absl::StatusOr<uint64_t> parse_header_length(const unsigned char (&bytes)[8], uint64_t file_size) {
  uint64_t length = 0;
  for (int i = 7; i >= 0; --i) length = (length << 8) | bytes[i];
  if (length > kMaxHeaderBytes) {
    return absl::DataLossError(
        absl::StrCat("announces a header of ", length, " bytes; the cap is ", kMaxHeaderBytes));
  }
  if (file_size < 8 || length > file_size - 8) {
    return absl::DataLossError(absl::StrCat("announces a header of ", length,
                                            " bytes, but the file has ", file_size, " in all"));
  }
  return length;
}

absl::StatusOr<SafetensorsHeader> parse_header(std::string_view json, uint64_t data_bytes) {
  if (json.empty() || json.front() != '{') {
    return absl::DataLossError("the header does not start with '{'");
  }
  // nlohmann's lexer takes a NUL for the end of its input, so the bytes after it would be ignored.
  if (json.find('\0') != std::string_view::npos) {
    return absl::DataLossError("the header holds a NUL byte");
  }
  HeaderBuilder builder;
  const bool parsed = nlohmann::json::sax_parse(json.begin(), json.end(), &builder);
  WEFT_ASSIGN_OR_RETURN(SafetensorsHeader header, std::move(builder).finish(parsed));
  WEFT_RETURN_IF_ERROR(check_places(header.tensors, data_bytes));
  return header;
}

absl::StatusOr<std::string> render_header(const SafetensorsHeader& header) {
  std::vector<std::string> members;
  std::vector<std::string> metadata;
  for (const auto& [key, value] : header.metadata) {
    const std::optional<std::string> key_text = json_string(key);
    const std::optional<std::string> value_text = json_string(value);
    if (!key_text || !value_text) {
      return absl::InvalidArgumentError(absl::StrCat("metadata ", shown(key), " is not UTF-8"));
    }
    metadata.push_back(absl::StrCat(*key_text, ":", *value_text));
  }
  if (!metadata.empty()) {
    members.push_back(absl::StrCat("\"__metadata__\":{", absl::StrJoin(metadata, ","), "}"));
  }
  for (const TensorEntry& tensor : header.tensors) {
    const std::optional<std::string> name = json_string(tensor.name);
    if (!name || tensor.name == kMetadataKey) {
      return absl::InvalidArgumentError(absl::StrCat("tensor name ", shown(tensor.name),
                                                     name ? " is reserved" : " is not UTF-8"));
    }
    members.push_back(absl::StrCat(*name, ":{\"dtype\":\"", to_string(tensor.dtype).data(),
                                   "\",\"shape\":[", absl::StrJoin(tensor.shape, ","),
                                   "],\"data_offsets\":[", tensor.begin, ",", tensor.end, "]}"));
  }
  std::string json = absl::StrCat("{", absl::StrJoin(members, ","), "}");
  json.append((8 - json.size() % 8) % 8, ' ');
  if (json.size() > kMaxHeaderBytes) {
    return absl::InvalidArgumentError(absl::StrCat("the header would have ", json.size(),
                                                   " bytes; the cap is ", kMaxHeaderBytes));
  }
  std::string out(8, '\0');
  for (int i = 0; i < 8; ++i) out[i] = static_cast<char>(uint64_t{json.size()} >> (8 * i));
  return out + json;
}

std::string shown(std::string_view name) {
  const bool cut = name.size() > kShownCharacters;
  const std::string text =
      absl::CHexEscape(absl::string_view(name.data(), std::min(name.size(), kShownCharacters)));
  return absl::StrCat("'", text, cut ? "...'" : "'");
}

}  // namespace weft::checkpoint_internal
