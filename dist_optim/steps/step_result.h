// Tells the result of a step of a DistributedOptimizer: whether the owners applied it, and from
// which step a crash would go on.
//
// Thread safety: these are plain values.
// Protocol: docs/durable_steps.md, "Reading the result".
#pragma once

#include <cstdint>
#include <string>

#include "absl/status/status.h"

namespace weft {

struct StepResult {
  enum class Outcome : uint8_t { kApplied, kNotApplied, kDataLoss };
  Outcome outcome = Outcome::kApplied;
  absl::Status status;       // why it is not kApplied
  uint64_t number = 0;       // the step's number in this optimizer or its step sequence, from 1
  double gradient_norm = 0;  // before clipping; 0 in mode hogwild; not finite if a gradient is not
  double clip = 1;           // the factor by which every gradient was multiplied

  // The steps up to this one survive a crash of every owner (docs/durable_steps.md). 0: no step
  // does, or an owner keeps no checkpoints.
  uint64_t durable = 0;
  // As `durable`, but without the owners that keep no checkpoints. The program itself must bring
  // back what those owners hold. 0 also if no owner keeps checkpoints.
  uint64_t kept = 0;
  // Why an owner's newest checkpoint could not be written. This does not change the step.
  absl::Status checkpoint;
};

}  // namespace weft
