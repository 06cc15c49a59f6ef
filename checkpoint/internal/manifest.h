// Writes and reads the JSON page that lists a checkpoint's files and marks it as complete.
//
// The page ends with a CRC-32 of all bytes before it, which is checked before the page is parsed.
// The page also lists a CRC-32 of each shard. So any single changed bit in a checkpoint is found.
//
// Thread safety: plain values and functions.
// Errors of parsing: DataLoss with the fault. The caller adds the file's name.
#pragma once

#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "weft/checkpoint/checkpoint_info.h"

namespace weft::checkpoint_internal {

struct Manifest {
  CheckpointInfo info;
  std::vector<ShardRecord> shards;
};

inline constexpr uint64_t kMaxManifestBytes = 16 << 20;
inline constexpr int64_t kMaxStep = 999'999'999'999'999;

// InvalidArgument: a number is out of range, a shard's name is refused or repeated, or the metadata
// is not UTF-8.
absl::StatusOr<std::string> render_manifest(const Manifest& manifest);
absl::StatusOr<Manifest> parse_manifest(std::string_view text);

// InvalidArgument unless `file` is a valid name for a shard's file. Such a name has at most 200
// letters, digits, '.', '_' and '-'. It does not start with '.', ends with ".safetensors", and is
// longer than that. So it cannot name a file outside the checkpoint's folder.
absl::Status check_shard_file(std::string_view file);

}  // namespace weft::checkpoint_internal
