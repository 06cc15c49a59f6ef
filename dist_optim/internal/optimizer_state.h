// What LibTorch's optimizers remember about one parameter, as named tensors.
//
// Thread safety: plain functions; the caller holds whatever guards the optimizer.
#pragma once

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

// The opposite. InvalidArgument: a field of another shape, or missing beside others; a parameter
// without fields starts anew. With `apply` false it only checks.
absl::Status load_state(torch::optim::Optimizer& optimizer, const OptimizerSettings& settings,
                        const at::Tensor& parameter, const std::string& name,
                        const TensorMap& state, bool apply);

}  // namespace weft::internal
