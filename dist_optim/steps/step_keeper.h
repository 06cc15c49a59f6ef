// Makes the steps of a ParameterSet durable: the interface that the set's steppers use.
// Checkpointer implements it.
//
// Thread safety: all methods may be called from any thread. Do not hold a stepper's lock.
// Protocol: docs/durable_steps.md.
#pragma once

#include <cstdint>
#include <memory>
#include <string>

#include "absl/status/status.h"
#include "weft/async/future.h"
#include "weft/dist_optim/steps/step_core.h"

namespace weft::dist_optim_internal {

class ShardStepper;

class StepKeeper {
 public:
  virtual ~StepKeeper() = default;
  // Adds a stepper of the set, before its first step. The stepper gets the state that was saved
  // under `shared_name`, which may be empty. The keeper holds it weakly.
  virtual absl::Status add(const std::string& shared_name,
                           const std::shared_ptr<ShardStepper>& stepper) = 0;
  // The step was applied; `sequence` is its step sequence, or empty. The future completes when the
  // step may be answered to its caller.
  virtual Future<StepDurable> after_step(const StepId& step, const std::string& sequence) = 0;
  // The program has loaded other values: writes a checkpoint as soon as possible.
  virtual Future<StepDurable> save() = 0;
  // Brings the set and its steppers back to a checkpoint that holds the step sequence `sequence`
  // exactly up to `number`. NotFound: there is none.
  virtual absl::Status go_back(const std::string& sequence, uint64_t number) = 0;
};

}  // namespace weft::dist_optim_internal
