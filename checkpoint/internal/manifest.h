// The JSON page that lists a checkpoint's files and says that they are complete.
//
// The page ends with a CRC-32 of all bytes before it, checked before anything is parsed, so that a
// single changed bit anywhere in a checkpoint is noticed: the page's own by this sum, the shards'
// by the sums that the page lists.
//
// Thread safety: plain values and functions.
// Errors: DataLoss with the fault; the caller adds the file.
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

// InvalidArgument if a number is negative or too large, a shard's name is refused or repeated, or a
// text is no UTF-8.
absl::StatusOr<std::string> render_manifest(const Manifest& manifest);
absl::StatusOr<Manifest> parse_manifest(std::string_view text);

// A shard's file name: letters, digits, '.', '_' and '-', not starting with '.', ending with
// ".safetensors", at most 200 characters. Nothing that could leave the checkpoint's folder.
absl::Status check_shard_file(std::string_view file);

}  // namespace weft::checkpoint_internal
