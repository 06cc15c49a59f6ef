// Puts an autograd node between a model's outputs and their users. If one of the outputs gets a
// gradient, the others get undefined ones, so all nodes that lead to them run. In backward the node
// runs before all nodes that lead to the outputs, in the outermost pass, and reports this.
//
// Thread safety: a free function.
#pragma once

#include <functional>
#include <vector>

#include <ATen/core/Tensor.h>

namespace weft::ddp_internal {

// `outputs` are tensors that require gradients. With `clone`, the results have their own memory.
// `backward_begins` is kept as long as a graph holds the results.
std::vector<at::Tensor> through_sink(const std::vector<at::Tensor>& outputs, bool clone,
                                     std::function<void()> backward_begins);

}  // namespace weft::ddp_internal
