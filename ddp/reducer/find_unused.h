// Finds the parameters that a backward pass will not reach.
//
// Thread safety: a pure function. The graph must not change meanwhile.
#pragma once

#include <cstddef>
#include <memory>
#include <vector>

#include <ATen/core/Tensor.h>
#include <torch/csrc/autograd/function.h>

namespace weft::ddp_internal {

// The indices of the `leaves` (AccumulateGrad nodes) that no graph of `outputs` reaches, in
// ascending order.
std::vector<size_t> find_unused(const std::vector<at::Tensor>& outputs,
                                const std::vector<std::shared_ptr<torch::autograd::Node>>& leaves);

}  // namespace weft::ddp_internal
