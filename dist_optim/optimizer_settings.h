// Carries the options of LibTorch's optimizers to the owners, and makes the optimizers from them
// there.
//
// Thread safety: these are plain values and functions.
// Errors: InvalidArgument, with LibTorch's own text, for values that LibTorch refuses.
#pragma once

#include <memory>
#include <tuple>
#include <variant>
#include <vector>

#include <ATen/core/Tensor.h>

#include "absl/status/statusor.h"

namespace torch::optim {
class Optimizer;
struct SGDOptions;
struct AdamOptions;
struct AdamWOptions;
struct AdagradOptions;
struct RMSpropOptions;
}  // namespace torch::optim

namespace weft {

struct SgdSettings {
  double lr = 0, momentum = 0, dampening = 0, weight_decay = 0;
  bool nesterov = false;
  bool operator==(const SgdSettings&) const = default;
};
struct AdamSettings {
  double lr = 0, beta1 = 0, beta2 = 0, eps = 0, weight_decay = 0;
  bool amsgrad = false;
  bool operator==(const AdamSettings&) const = default;
};
struct AdamWSettings {
  double lr = 0, beta1 = 0, beta2 = 0, eps = 0, weight_decay = 0;
  bool amsgrad = false;
  bool operator==(const AdamWSettings&) const = default;
};
struct AdagradSettings {
  double lr = 0, lr_decay = 0, weight_decay = 0, initial_accumulator_value = 0, eps = 0;
  bool operator==(const AdagradSettings&) const = default;
};
struct RmspropSettings {
  double lr = 0, alpha = 0, eps = 0, weight_decay = 0, momentum = 0;
  bool centered = false;
  bool operator==(const RmspropSettings&) const = default;
};

inline auto weft_fields(SgdSettings& s) {
  return std::tie(s.lr, s.momentum, s.dampening, s.weight_decay, s.nesterov);
}
inline auto weft_fields(AdamSettings& s) {
  return std::tie(s.lr, s.beta1, s.beta2, s.eps, s.weight_decay, s.amsgrad);
}
inline auto weft_fields(AdamWSettings& s) {
  return std::tie(s.lr, s.beta1, s.beta2, s.eps, s.weight_decay, s.amsgrad);
}
inline auto weft_fields(AdagradSettings& s) {
  return std::tie(s.lr, s.lr_decay, s.weight_decay, s.initial_accumulator_value, s.eps);
}
inline auto weft_fields(RmspropSettings& s) {
  return std::tie(s.lr, s.alpha, s.eps, s.weight_decay, s.momentum, s.centered);
}

using OptimizerSettings =
    std::variant<SgdSettings, AdamSettings, AdamWSettings, AdagradSettings, RmspropSettings>;

OptimizerSettings settings_of(const torch::optim::SGDOptions& options);
OptimizerSettings settings_of(const torch::optim::AdamOptions& options);
OptimizerSettings settings_of(const torch::optim::AdamWOptions& options);
OptimizerSettings settings_of(const torch::optim::AdagradOptions& options);
OptimizerSettings settings_of(const torch::optim::RMSpropOptions& options);

double learning_rate_of(const OptimizerSettings& settings);

namespace dist_optim_internal {

struct TorchGroup {
  std::vector<at::Tensor> parameters;
  OptimizerSettings settings;
};
// Makes LibTorch's optimizer. All groups must be of one kind.
absl::StatusOr<std::unique_ptr<torch::optim::Optimizer>> make_torch_optimizer(
    const std::vector<TorchGroup>& groups);

}  // namespace dist_optim_internal
}  // namespace weft
