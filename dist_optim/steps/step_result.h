// What a step of a DistributedOptimizer came to: who applied it, and from where a crash would go
// on.
//
// Thread safety: plain values.
#pragma once

#include <cstdint>
#include <string>

#include "absl/status/status.h"

namespace weft {

struct StepResult {
  enum class Outcome : uint8_t { kApplied, kNotApplied, kDataLoss };
  Outcome outcome = Outcome::kApplied;
  absl::Status status;       // why not
  uint64_t number = 0;       // of this optimizer's steps, from 1
  double gradient_norm = 0;  // before clipping; 0 under hogwild; not finite if a gradient is not
  double clip = 1;           // what every gradient was multiplied by

  // Steps up to this one survive a crash of every owner (docs/durable_steps.md). 0: none, or an
  // owner keeps no checkpoints.
  uint64_t durable = 0;
  // The same of the owners that keep checkpoints; those that keep none do not count, and what they
  // hold is the program's own to bring back. 0 also if no owner keeps any.
  uint64_t kept = 0;
  // Why an owner's newest checkpoint could not be written; the step is not affected.
  absl::Status checkpoint;
};

}  // namespace weft
