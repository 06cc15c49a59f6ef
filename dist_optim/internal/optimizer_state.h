// What LibTorch's optimizers remember about one parameter, as named tensors.
//
// Thread safety: plain functions; the caller holds whatever guards the optimizer.
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

// Makes the state that the first step would make, so that the step need not. The exception is SGD
// with momentum and dampening, whose momentum begins as a copy of the first gradient.
// `spare` makes a tensor like the parameter, whose own handle is only a key here.
void allocate_state(torch::optim::Optimizer& optimizer, const OptimizerSettings& settings,
                    const at::Tensor& parameter, const std::function<at::Tensor()>& spare);

// Adds copies as "<name>/<field>"; a parameter without state adds nothing.
void save_state(torch::optim::Optimizer& optimizer, const OptimizerSettings& settings,
                const at::Tensor& parameter, const std::string& name, TensorMap& out);

// InvalidArgument: a field of another shape, or missing beside others. Adds to `known` what the
// parameter's fields may be called.
absl::Status check_state(const OptimizerSettings& settings, const ParameterKind& kind,
                         const std::string& name, const TensorMap& state,
                         std::set<std::string>& known);
// The opposite of save_state, once that was checked. Null: the parameter has no fields and starts
// anew.
using ParameterStatePtr = std::unique_ptr<torch::optim::OptimizerParamState>;
ParameterStatePtr make_state(const OptimizerSettings& settings, const std::string& name,
                             const TensorMap& state, const at::Tensor& like);
void replace_state(torch::optim::Optimizer& optimizer, const at::Tensor& parameter,
                   ParameterStatePtr state);

}  // namespace weft::dist_optim_internal
