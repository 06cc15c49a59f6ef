// A node between a model's outputs and whoever uses them: if one of the outputs gets a gradient,
// the others get undefined ones, so that all that leads to them runs. It runs before all that leads
// to the outputs, and in the outermost pass, and tells so.
//
// Thread safety: a free function.
#pragma once

#include <functional>
#include <vector>

#include <ATen/core/Tensor.h>

namespace weft::ddp_internal {

// Tensors that require gradients; `clone`: the results have memory of their own. `backward_begins`
// lives as long as a graph that holds the results.
std::vector<at::Tensor> through_sink(const std::vector<at::Tensor>& outputs, bool clone,
                                     std::function<void()> backward_begins);

}  // namespace weft::ddp_internal
