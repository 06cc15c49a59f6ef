#include "weft/dist_optim/optimizer_settings.h"

#include <exception>
#include <utility>

#include <torch/optim/adagrad.h>
#include <torch/optim/adam.h>
#include <torch/optim/adamw.h>
#include <torch/optim/rmsprop.h>
#include <torch/optim/sgd.h>

#include "absl/strings/str_cat.h"
#include "weft/dist_autograd/graph/engine_scope.h"

namespace weft {
namespace {

using torch::optim::AdagradOptions;
using torch::optim::AdamOptions;
using torch::optim::AdamWOptions;
using torch::optim::RMSpropOptions;
using torch::optim::SGDOptions;

template <class Settings, class Options>
Settings adam_settings(const Options& o) {
  const auto [beta1, beta2] = o.betas();
  return {o.lr(), beta1, beta2, o.eps(), o.weight_decay(), o.amsgrad()};
}
template <class Options, class Settings>
Options adam_options(const Settings& s) {
  return Options(s.lr)
      .betas({s.beta1, s.beta2})
      .eps(s.eps)
      .weight_decay(s.weight_decay)
      .amsgrad(s.amsgrad);
}

SGDOptions options_of(const SgdSettings& s) {
  return SGDOptions(s.lr)
      .momentum(s.momentum)
      .dampening(s.dampening)
      .weight_decay(s.weight_decay)
      .nesterov(s.nesterov);
}
AdamOptions options_of(const AdamSettings& s) { return adam_options<AdamOptions>(s); }
AdamWOptions options_of(const AdamWSettings& s) { return adam_options<AdamWOptions>(s); }
AdagradOptions options_of(const AdagradSettings& s) {
  return AdagradOptions(s.lr)
      .lr_decay(s.lr_decay)
      .weight_decay(s.weight_decay)
      .initial_accumulator_value(s.initial_accumulator_value)
      .eps(s.eps);
}
RMSpropOptions options_of(const RmspropSettings& s) {
  return RMSpropOptions(s.lr)
      .alpha(s.alpha)
      .eps(s.eps)
      .weight_decay(s.weight_decay)
      .momentum(s.momentum)
      .centered(s.centered);
}

template <class Optimizer, class Settings>
std::unique_ptr<torch::optim::Optimizer> make(
    const std::vector<dist_optim_internal::TorchGroup>& groups) {
  std::vector<torch::optim::OptimizerParamGroup> torch_groups;
  for (const dist_optim_internal::TorchGroup& group : groups) {
    auto options = options_of(std::get<Settings>(group.settings));
    // LibTorch's constructor checks its default options only, so each group's values go through
    // one.
    Optimizer checked(std::vector<at::Tensor>{}, options);
    torch_groups.emplace_back(group.parameters,
                              std::make_unique<decltype(options)>(std::move(options)));
  }
  return std::make_unique<Optimizer>(torch_groups,
                                     options_of(std::get<Settings>(groups.front().settings)));
}

}  // namespace

OptimizerSettings settings_of(const SGDOptions& o) {
  return SgdSettings{o.lr(), o.momentum(), o.dampening(), o.weight_decay(), o.nesterov()};
}
OptimizerSettings settings_of(const AdamOptions& o) { return adam_settings<AdamSettings>(o); }
OptimizerSettings settings_of(const AdamWOptions& o) { return adam_settings<AdamWSettings>(o); }
OptimizerSettings settings_of(const AdagradOptions& o) {
  return AdagradSettings{o.lr(), o.lr_decay(), o.weight_decay(), o.initial_accumulator_value(),
                         o.eps()};
}
OptimizerSettings settings_of(const RMSpropOptions& o) {
  return RmspropSettings{o.lr(), o.alpha(), o.eps(), o.weight_decay(), o.momentum(), o.centered()};
}

double learning_rate_of(const OptimizerSettings& settings) {
  return std::visit([](const auto& s) { return s.lr; }, settings);
}

namespace dist_optim_internal {

absl::StatusOr<std::unique_ptr<torch::optim::Optimizer>> make_torch_optimizer(
    const std::vector<TorchGroup>& groups) {
  if (groups.empty()) return absl::InvalidArgumentError("an optimizer without parameter groups");
  for (const TorchGroup& group : groups) {
    if (group.settings.index() != groups.front().settings.index()) {
      return absl::InvalidArgumentError("parameter groups of different optimizers");
    }
  }
  try {
    switch (groups.front().settings.index()) {
      case 0:
        return make<torch::optim::SGD, SgdSettings>(groups);
      case 1:
        return make<torch::optim::Adam, AdamSettings>(groups);
      case 2:
        return make<torch::optim::AdamW, AdamWSettings>(groups);
      case 3:
        return make<torch::optim::Adagrad, AdagradSettings>(groups);
      default:
        return make<torch::optim::RMSprop, RmspropSettings>(groups);
    }
  } catch (const std::exception&) {
    return absl::InvalidArgumentError(absl::StrCat(
        "the optimizer's options: ", dist_autograd_internal::text_of_current_exception()));
  }
}

}  // namespace dist_optim_internal
}  // namespace weft
