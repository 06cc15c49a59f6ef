// Lets all ranks of a group agree that a step of saving or loading a checkpoint has succeeded.
//
// Thread safety: one thread of each rank.
// Blocking: reach() waits for the other ranks, no longer than the group's timeout.
// Errors: c10::ValueError on all ranks, if one brings an error or if they found different
// checkpoints. Errors between ranks are those of ProcessGroup.
#pragma once

#include <cstdint>
#include <string>

#include <ATen/core/Tensor.h>
#include <torch/nn/module.h>

#include "weft/comm/process_group.h"
#include "weft/ddp/checkpoint.h"

namespace weft::ddp_internal {

// The checkpoint that a rank has read. It must be equal on all ranks.
struct FoundCheckpoint {
  CheckpointProgress progress;
  uint64_t bytes = 0;  // of its tensors; of an old archive, of the file
  uint64_t hash = 0;   // of all of its content

  friend bool operator==(const FoundCheckpoint&, const FoundCheckpoint&) = default;
};

class CheckpointAgreement {
 public:
  // `place` begins each error. `module` shows on which device the group's tensors are. `group` must
  // outlive this object.
  CheckpointAgreement(ProcessGroup& group, const torch::nn::Module& module, std::string place);

  // A point that all ranks reach, each with an error ("" for none) and the checkpoint that it has.
  void reach(const std::string& error, const FoundCheckpoint& found);

 private:
  [[noreturn]] void fail(const std::string& why) const;

  ProcessGroup& group_;
  const std::string place_;
  at::Device device_;  // a device whose tensors the group's backend takes
};

}  // namespace weft::ddp_internal
