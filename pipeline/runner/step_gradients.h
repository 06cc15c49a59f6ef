// Brings the gradients that a pipeline has computed into a backward pass of a context.
//
// The pipeline computes gradients outside of a pass, action by action. At the end of a step its
// worker returns a token: a tensor whose autograd node has an edge to each leaf. When a pass of the
// context reaches the token, the node gives each leaf its gradient. So hooks of the leaves,
// observers, the commit and errors are those of any other pass.
//
// Thread safety: none.
// Lifetime: the token keeps the gradients until the pass has run, or it is destroyed.
#pragma once

#include <vector>

#include <ATen/core/Tensor.h>

#include "weft/dist_autograd/graph/leaf_stage.h"

namespace weft::pipeline_internal {

// Returns the token: a float scalar of value 0. It requires no gradient if there are no gradients.
// The gradient that reaches it is not looked at.
at::Tensor gradient_token(std::vector<dist_autograd_internal::LeafGradient> gradients);

}  // namespace weft::pipeline_internal
