// Where the state of an optimizer lies that was loaded elsewhere.
//
// Thread safety: a free function, while nobody uses the optimizer.
#pragma once

#include <torch/optim/optimizer.h>

namespace weft::ddp_internal {

// Moves what an optimizer has just loaded, on the CPU, to where its parameters are.
void move_states_to_parameters(torch::optim::Optimizer& optimizer);

}  // namespace weft::ddp_internal
