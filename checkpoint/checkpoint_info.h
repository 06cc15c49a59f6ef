// What a checkpoint says of itself.
//
// Thread safety: plain values.
#pragma once

#include <cstdint>
#include <map>
#include <string>

namespace weft {

// Where a run stood when its state was saved.
struct CheckpointInfo {
  int64_t step = 0;
  int64_t epoch = 0;
  int64_t world_size = 1;
  uint64_t seed = 0;
  std::map<std::string, std::string> metadata = {};  // UTF-8; whatever else the program must know
  // Of the folder's owner that saved it, set by CheckpointFolder; 0: nobody had claimed the folder.
  uint64_t incarnation = 0;
};

// One file of a checkpoint, as its writer saw it.
struct ShardRecord {
  std::string file;  // its name inside the checkpoint's folder
  uint64_t bytes = 0;
  uint32_t crc32 = 0;
};

}  // namespace weft
