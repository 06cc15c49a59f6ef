// Turns the state of any LibTorch optimizer into named tensors and texts, and back.
//
// Only the optimizer knows the types of its state, and it can only write them to a LibTorch
// archive. So both functions go through an archive in memory. Names of nested archives are joined
// with dots: "state.0.exp_avg" is a tensor of the first parameter. Values that are no tensors are
// texts with their type: "param_groups.param_groups/0.options.lr" is "float 0.1". The optimizer
// names parameters by their addresses; here they have their index over all groups.
//
// Such a state runs no code, wherever it comes from: optimizer_archive() refuses names that could
// become code in the archive.
//
// Thread safety: nothing may use the optimizer meanwhile.
// Blocking: no. Both make one more copy of the state in memory.
// Errors: c10::ValueError, which names the entry. Those of the optimizer's own methods.
#pragma once

#include <torch/optim/optimizer.h>
#include <torch/serialize/input-archive.h>

#include "weft/checkpoint/state_file.h"

namespace weft::ddp_internal {

StateFile optimizer_state(const torch::optim::Optimizer& optimizer);

// An archive on the CPU, for Optimizer::load.
torch::serialize::InputArchive optimizer_archive(const StateFile& state);

}  // namespace weft::ddp_internal
