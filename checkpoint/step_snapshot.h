// One moment of an owner's parameters and optimizers, and its form in a CheckpointFolder.
//
// Thread safety: plain values and functions. Blocking: file I/O.
// Errors: those of CheckpointFolder; DataLoss (a checkpoint that was not written by this).
// Protocol: docs/durable_steps.md, "What is written".
#pragma once

#include <cstdint>
#include <map>
#include <string>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "weft/checkpoint/checkpoint.h"

namespace weft::checkpoint_internal {

struct SavedOptimizer {
  TensorMap state;
  std::map<std::string, uint64_t> lines;  // the newest applied step of each
};

struct StepSnapshot {
  TensorMap parameters;
  std::map<std::string, SavedOptimizer> optimizers;  // by shared_name
};

// As the folder's next step; returns its number. If that fails nothing of it is left.
absl::StatusOr<int64_t> write_snapshot(const CheckpointFolder& folder,
                                       const StepSnapshot& snapshot);
absl::StatusOr<StepSnapshot> read_snapshot(const CheckpointFolder& folder, int64_t step);

}  // namespace weft::checkpoint_internal
