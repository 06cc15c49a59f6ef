// What LibTorch's optimizers remember about one parameter, as named tensors.
//
// Thread safety: plain functions; the caller holds whatever guards the optimizer.
#pragma once

#include <set>
#include <string>

#include <ATen/core/Tensor.h>

#include "absl/status/status.h"
#include "weft/dist_optim/optimizer_settings.h"
#include "weft/dist_optim/state_file.h"

namespace weft::internal {

// Makes the state that the first step would make, so that the step need not. The exception is SGD
// with momentum and dampening, whose momentum begins as a copy of the first gradient.
void allocate_state(torch::optim::Optimizer& optimizer, const OptimizerSettings& settings,
                    const at::Tensor& parameter);

// Adds copies as "<name>/<field>"; a parameter that was never stepped adds nothing.
void save_state(torch::optim::Optimizer& optimizer, const OptimizerSettings& settings,
                const at::Tensor& parameter, const std::string& name, TensorMap& out);

// InvalidArgument: a field of another shape, or missing beside others. Adds to `known` what the
// parameter's fields may be called.
absl::Status check_state(const OptimizerSettings& settings, const at::Tensor& parameter,
                         const std::string& name, const TensorMap& state,
                         std::set<std::string>& known);
// The opposite of save_state, once that was checked; a parameter without fields starts anew.
void load_state(torch::optim::Optimizer& optimizer, const OptimizerSettings& settings,
                const at::Tensor& parameter, const std::string& name, const TensorMap& state);

}  // namespace weft::internal
