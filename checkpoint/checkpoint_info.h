// Describes a checkpoint: the position of the run when it was saved, and the checkpoint's files.
//
// Thread safety: none. These are plain values.
#pragma once

#include <cstdint>
#include <map>
#include <string>

namespace weft {

// The position of a run when its state was saved.
struct CheckpointInfo {
  int64_t step = 0;
  int64_t epoch = 0;
  int64_t world_size = 1;
  uint64_t seed = 0;
  std::map<std::string, std::string> metadata = {};  // UTF-8; the program's own entries
  // The incarnation of the folder's owner that saved this. CheckpointFolder sets it. 0: the writer
  // had not claimed the folder.
  uint64_t incarnation = 0;
};

// One file of a checkpoint, with the size and checksum that its writer read back.
struct ShardRecord {
  std::string file;  // its name inside the step's folder
  uint64_t bytes = 0;
  uint32_t crc32 = 0;
};

}  // namespace weft
