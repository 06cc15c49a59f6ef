// Computes learning-rate schedules: pure functions from the number of finished steps to a factor of
// the base rate.
//
//   weft::LrSchedule schedule = weft::warmup_lr(500, weft::cosine_lr(10000, 0.01));
//   optimizer.set_schedule(schedule);
//
// The formulas are PyTorch's closed forms (StepLR, ExponentialLR, CosineAnnealingLR, LinearLR).
//
// Thread safety: schedules are immutable values.
// Errors: std::invalid_argument from the functions that make them.
#pragma once

#include <cmath>
#include <cstdint>
#include <functional>
#include <numbers>
#include <stdexcept>
#include <utility>

namespace weft {

// `step` counts finished steps: 0 for the first one.
using LrSchedule = std::function<double(int64_t step)>;

namespace dist_optim_internal {
inline void require_schedule(bool holds, const char* what) {
  if (!holds) throw std::invalid_argument(what);
}
}  // namespace dist_optim_internal

inline LrSchedule constant_lr() {
  return [](int64_t) { return 1.0; };
}

// Multiplies by `gamma` after every `every` steps.
inline LrSchedule step_lr(int64_t every, double gamma = 0.1) {
  dist_optim_internal::require_schedule(every > 0, "step_lr: every must be positive");
  return [=](int64_t step) { return std::pow(gamma, static_cast<double>(step / every)); };
}

// Multiplies by `gamma` after every step.
inline LrSchedule exponential_lr(double gamma) {
  return [=](int64_t step) { return std::pow(gamma, static_cast<double>(step)); };
}

// Falls from 1 to `floor` over `steps` steps, along half a cosine. Stays at `floor` afterwards.
inline LrSchedule cosine_lr(int64_t steps, double floor = 0.0) {
  dist_optim_internal::require_schedule(steps > 0, "cosine_lr: steps must be positive");
  return [=](int64_t step) {
    if (step >= steps) return floor;
    const double part = static_cast<double>(step) / static_cast<double>(steps);
    return floor + (1.0 - floor) * (1.0 + std::cos(std::numbers::pi * part)) / 2.0;
  };
}

// Rises linearly from `start` to 1 over `steps` steps, then follows `after`, which counts from
// there. LinearLR's default of `start` is 1/3. Here it is 0, so the first step's rate is 0.
inline LrSchedule warmup_lr(int64_t steps, LrSchedule after = constant_lr(), double start = 0.0) {
  dist_optim_internal::require_schedule(steps > 0, "warmup_lr: steps must be positive");
  return [=](int64_t step) {
    if (step >= steps) return after(step - steps);
    return start + (1.0 - start) * static_cast<double>(step) / static_cast<double>(steps);
  };
}

}  // namespace weft
