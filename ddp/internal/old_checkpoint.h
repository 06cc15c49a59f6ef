// Reads the checkpoints of earlier releases: LibTorch archives, one file each.
//
// This release is the last one that reads them. Loading an archive can run code from it.
//
// Thread safety: plain functions.
// Blocking: file I/O.
// Errors: c10::ValueError or c10::Error; the text says what is wrong with the file.
#pragma once

#include <optional>
#include <string>

#include <torch/serialize/input-archive.h>

#include "weft/checkpoint/state_file.h"
#include "weft/ddp/internal/checkpoint_agreement.h"

namespace weft::ddp_internal {

// A checkpoint that was read. It is copied into the module when all ranks have got so far.
struct LoadedCheckpoint {
  FoundCheckpoint found;
  TensorMap tensors;
  std::optional<torch::serialize::InputArchive> optimizer;  // for Optimizer::load
};

LoadedCheckpoint read_old_checkpoint(const std::string& path);

}  // namespace weft::ddp_internal
