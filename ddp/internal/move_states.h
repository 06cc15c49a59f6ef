// Moves the state of an optimizer that was loaded on the CPU.
//
// Thread safety: a free function. Nothing may use the optimizer meanwhile.
#pragma once

#include <torch/optim/optimizer.h>

namespace weft::ddp_internal {

// Moves the state to the devices of its parameters.
void move_states_to_parameters(torch::optim::Optimizer& optimizer);

}  // namespace weft::ddp_internal
