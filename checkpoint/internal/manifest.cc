#include "weft/checkpoint/internal/manifest.h"

#include <algorithm>
#include <set>
#include <utility>
#include <zlib.h>

#include <nlohmann/json.hpp>

#include "absl/strings/ascii.h"
#include "absl/strings/escaping.h"
#include "absl/strings/match.h"
#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "weft/base/status.h"
#include "weft/checkpoint/internal/folder_claim.h"

namespace weft::checkpoint_internal {
namespace {

using Json = nlohmann::json;

constexpr std::string_view kFormat = "weft-checkpoint";
constexpr int kVersion = 1;
constexpr size_t kMaxFileName = 200;
constexpr std::string_view kShardSuffix = ".safetensors";

std::string hex(uint32_t crc) { return absl::StrCat(absl::Hex(crc, absl::kZeroPad8)); }

// The last lines of a manifest whose earlier bytes have the checksum `crc`.
std::string tail(uint32_t crc) { return absl::StrCat(",\n  \"crc32\": \"", hex(crc), "\"\n}\n"); }

uint32_t crc32_of(std::string_view bytes) {
  return static_cast<uint32_t>(
      ::crc32_z(0, reinterpret_cast<const unsigned char*>(bytes.data()), bytes.size()));
}

template <class... Text>
absl::Status fault(const Text&... text) {
  return absl::DataLossError(absl::StrCat(text...));
}

absl::StatusOr<uint64_t> number(const Json& object, const char* key, uint64_t limit) {
  const auto found = object.find(key);
  if (found == object.end() || !found->is_number_unsigned()) return fault("no number '", key, "'");
  const uint64_t value = found->get<uint64_t>();
  if (value > limit) return fault("'", key, "' is ", value, ", the limit is ", limit);
  return value;
}

absl::StatusOr<std::string> text(const Json& object, const char* key) {
  const auto found = object.find(key);
  if (found == object.end() || !found->is_string()) return fault("no text '", key, "'");
  return found->get<std::string>();
}

absl::StatusOr<ShardRecord> parse_shard(const Json& object) {
  if (!object.is_object()) return fault("a shard's entry is no object");
  ShardRecord shard;
  WEFT_ASSIGN_OR_RETURN(shard.file, text(object, "file"));
  absl::Status named = check_shard_file(shard.file);
  if (!named.ok()) return fault(named.message());
  WEFT_ASSIGN_OR_RETURN(shard.bytes, number(object, "bytes", INT64_MAX));
  WEFT_ASSIGN_OR_RETURN(const std::string crc, text(object, "crc32"));
  if (crc.size() != 8 || !absl::SimpleHexAtoi(crc, &shard.crc32) || hex(shard.crc32) != crc) {
    return fault("shard ", shard.file, " has no valid crc32");
  }
  return shard;
}

absl::Status check_info(const CheckpointInfo& info) {
  if (info.step < 0 || info.step > kMaxStep || info.epoch < 0 || info.world_size < 1) {
    return absl::InvalidArgumentError(absl::StrCat("step ", info.step, ", epoch ", info.epoch,
                                                   " or world size ", info.world_size,
                                                   " is out of range"));
  }
  if (info.incarnation > kMaxIncarnation) {
    return absl::InvalidArgumentError(
        absl::StrCat("incarnation ", info.incarnation, " is out of range"));
  }
  return absl::OkStatus();
}

absl::Status check_names(const std::vector<ShardRecord>& shards) {
  std::set<std::string> names;
  for (const ShardRecord& shard : shards) {
    WEFT_RETURN_IF_ERROR(check_shard_file(shard.file));
    if (!names.insert(shard.file).second) {
      return absl::InvalidArgumentError(absl::StrCat("shard ", shard.file, " appears twice"));
    }
  }
  return absl::OkStatus();
}

}  // namespace

absl::Status check_shard_file(std::string_view file) {
  const bool plain = std::all_of(file.begin(), file.end(), [](unsigned char c) {
    return absl::ascii_isalnum(c) || c == '.' || c == '_' || c == '-';
  });
  if (plain && !file.empty() && file.front() != '.' && file.size() <= kMaxFileName &&
      file.size() > kShardSuffix.size() && file.ends_with(kShardSuffix)) {
    return absl::OkStatus();
  }
  return absl::InvalidArgumentError(absl::StrCat(
      "refused as a shard's file name: '",
      absl::CHexEscape(absl::string_view(file.data(), std::min(file.size(), kMaxFileName))), "'"));
}

absl::StatusOr<std::string> render_manifest(const Manifest& manifest) {
  WEFT_RETURN_IF_ERROR(check_info(manifest.info));
  WEFT_RETURN_IF_ERROR(check_names(manifest.shards));
  // ordered_json keeps the order of the page. It is too slow to parse a hostile page with.
  using Json = nlohmann::ordered_json;
  Json page = {{"format", kFormat},
               {"version", kVersion},
               {"step", uint64_t(manifest.info.step)},
               {"epoch", uint64_t(manifest.info.epoch)},
               {"world_size", uint64_t(manifest.info.world_size)},
               {"seed", manifest.info.seed}};
  if (manifest.info.incarnation > 0) page["incarnation"] = manifest.info.incarnation;
  page["metadata"] = Json::object();
  page["shards"] = Json::array();
  for (const auto& [key, value] : manifest.info.metadata) page["metadata"][key] = value;
  for (const ShardRecord& shard : manifest.shards) {
    page["shards"].push_back(
        {{"file", shard.file}, {"bytes", shard.bytes}, {"crc32", hex(shard.crc32)}});
  }
  std::string body;
  try {
    body = page.dump(2);
  } catch (const Json::type_error&) {
    return absl::InvalidArgumentError("a key or value of the metadata is not UTF-8");
  }
  body.resize(body.size() - 2);  // tail() writes the closing "\n}" after the checksum
  return absl::StrCat(body, tail(crc32_of(body)));
}

absl::StatusOr<Manifest> parse_manifest(std::string_view bytes) {
  const size_t tail_size = tail(0).size();
  if (bytes.size() < tail_size) return fault("it is cut off");
  const std::string_view body = bytes.substr(0, bytes.size() - tail_size);
  if (bytes.substr(body.size()) != tail(crc32_of(body))) {
    return fault("its checksum does not match: it is damaged or was changed by hand");
  }
  const Json page = Json::parse(bytes.begin(), bytes.end(), nullptr, /*allow_exceptions=*/false);
  if (!page.is_object()) return fault("it is no JSON object");
  WEFT_ASSIGN_OR_RETURN(const std::string format, text(page, "format"));
  if (format != kFormat) return fault("its format is not ", kFormat.data());
  WEFT_ASSIGN_OR_RETURN(const uint64_t version, number(page, "version", INT64_MAX));
  if (version != kVersion) return fault("its version is ", version, "; this program reads 1");

  Manifest manifest;
  WEFT_ASSIGN_OR_RETURN(manifest.info.step, number(page, "step", kMaxStep));
  WEFT_ASSIGN_OR_RETURN(manifest.info.epoch, number(page, "epoch", INT64_MAX));
  WEFT_ASSIGN_OR_RETURN(manifest.info.world_size, number(page, "world_size", INT64_MAX));
  WEFT_ASSIGN_OR_RETURN(manifest.info.seed, number(page, "seed", UINT64_MAX));
  if (page.contains("incarnation")) {  // older programs and unclaimed folders write none
    WEFT_ASSIGN_OR_RETURN(manifest.info.incarnation, number(page, "incarnation", kMaxIncarnation));
  }
  const auto metadata = page.find("metadata");
  if (metadata == page.end() || !metadata->is_object()) return fault("no object 'metadata'");
  for (const auto& [key, value] : metadata->items()) {
    if (!value.is_string()) return fault("metadata '", absl::CHexEscape(key), "' is no text");
    manifest.info.metadata[key] = value.get<std::string>();
  }
  const auto shards = page.find("shards");
  if (shards == page.end() || !shards->is_array()) return fault("no list 'shards'");
  for (const Json& entry : *shards) {
    WEFT_ASSIGN_OR_RETURN(ShardRecord shard, parse_shard(entry));
    manifest.shards.push_back(std::move(shard));
  }
  absl::Status consistent = check_info(manifest.info);
  consistent.Update(check_names(manifest.shards));
  if (!consistent.ok()) return fault(consistent.message());
  return manifest;
}

}  // namespace weft::checkpoint_internal
