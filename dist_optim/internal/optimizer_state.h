// Saves and restores what LibTorch's optimizers remember about one parameter, as named tensors.
//
// Thread safety: these are plain functions. The caller holds the lock that guards the optimizer.
#pragma once

#include <functional>
#include <memory>
#include <set>
#include <string>

#include <ATen/core/Tensor.h>

#include "absl/status/status.h"
#include "weft/checkpoint/state_file.h"
#include "weft/dist_optim/optimizer_settings.h"
#include "weft/dist_optim/parameter_set.h"

namespace torch::optim {
class OptimizerParamState;
}

namespace weft::dist_optim_internal {

// Makes the state that the first step would make, so that the step allocates nothing. The exception
// is SGD with momentum and dampening: its momentum begins as a copy of the first gradient. `spare`
// makes a tensor like the parameter. `parameter` itself is only used as a key.
void allocate_state(torch::optim::Optimizer& optimizer, const OptimizerSettings& settings,
                    const at::Tensor& parameter, const std::function<at::Tensor()>& spare);

// Adds copies, named "<name>/<field>". A parameter without state adds nothing.
void save_state(torch::optim::Optimizer& optimizer, const OptimizerSettings& settings,
                const at::Tensor& parameter, const std::string& name, TensorMap& out);

// InvalidArgument: a field has another shape, or is missing although others are there. Adds the
// possible names of the parameter's fields to `known`.
absl::Status check_state(const OptimizerSettings& settings, const ParameterKind& kind,
                         const std::string& name, const TensorMap& state,
                         std::set<std::string>& known);
// Reverses save_state, for a state that check_state has accepted. Null: the parameter has no fields
// and starts anew.
using ParameterStatePtr = std::unique_ptr<torch::optim::OptimizerParamState>;
ParameterStatePtr make_state(const OptimizerSettings& settings, const std::string& name,
                             const TensorMap& state, const at::Tensor& like);
void replace_state(torch::optim::Optimizer& optimizer, const at::Tensor& parameter,
                   ParameterStatePtr state);

}  // namespace weft::dist_optim_internal
