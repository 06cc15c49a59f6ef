// Writes an owner's parameters and optimizer states, taken at one moment, to a CheckpointFolder.
//
// Thread safety: plain values and functions.
// Blocking: file I/O.
// Errors: those of CheckpointFolder. DataLoss also means that write_snapshot() did not write the
// checkpoint.
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
  std::map<std::string, uint64_t> sequences;  // the newest applied step of each step sequence
};

struct StepSnapshot {
  TensorMap parameters;
  std::map<std::string, SavedOptimizer> optimizers;  // by shared_name
};

// Writes the snapshot as the folder's next step and returns the step's number. If it fails, it
// removes the files that it has written.
absl::StatusOr<int64_t> write_snapshot(const CheckpointFolder& folder,
                                       const StepSnapshot& snapshot);
absl::StatusOr<StepSnapshot> read_snapshot(const CheckpointFolder& folder, int64_t step);

}  // namespace weft::checkpoint_internal
