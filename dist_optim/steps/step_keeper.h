// What a ParameterSet's steppers need of whoever makes its steps durable: Checkpointer.
//
// Thread safety: all methods may be called from any thread, none under a stepper's lock.
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
  // A stepper of the set, before its first step; `shared_name` may be empty. It gets what was saved
  // under its name. Kept weakly.
  virtual absl::Status add(const std::string& shared_name,
                           const std::shared_ptr<ShardStepper>& stepper) = 0;
  // The step was applied; `line` is that of its optimizer, or empty. Complete when its caller may
  // hear of it.
  virtual Future<StepDurable> after_step(const StepId& step, const std::string& line) = 0;
  // Other values were loaded: writes a checkpoint, as soon as it can.
  virtual Future<StepDurable> save() = 0;
  // Brings the set and its steppers back to a checkpoint that holds this line up to `number`.
  // NotFound: there is none.
  virtual absl::Status go_back(const std::string& line, uint64_t number) = 0;
};

}  // namespace weft::dist_optim_internal
