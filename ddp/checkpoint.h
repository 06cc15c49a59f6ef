// Saves a replicated model once for all ranks of a group, and loads it on each of them.
//
//   weft::save_checkpoint(*group, "run.pt", *model, &optimizer, {.epoch = 3, .step = 1200});
//   weft::CheckpointProgress at = weft::load_checkpoint(*group, "run.pt", *model, &optimizer);
//
// Rank 0 writes the parameters and buffers by name, the optimizer's state and the progress. All
// others wait. The path keeps its old content until the new one is complete and flushed to the
// disk.
//
// Loading reads the file on every rank: once to hash it and once for its values. It copies the
// values into the module's own tensors, whatever their devices are, and converts types as copying
// does. A prefix "module." that all names of one side have (DataParallel's and DDP's) does not
// count. The file is a LibTorch archive. Python reads it with torch.jit.load(path); the tensors are
// in its dictionary `model`. Loading an archive can run code, so load only your own.
//
// State that is not in a replicated model and optimizer:
//   - ZeroRedundancyOptimizer: all ranks call consolidate_state_dict(0) before save_checkpoint.
//
//   - PostLocalSgdOptimizer is no torch::optim::Optimizer. Pass &post.optimizer(). After loading,
//     set the averager's step (ModelAverager::set_step).
//
//   - PowerSgdHook: its state differs between ranks and is not in the file. Each rank saves and
//     loads its own (PowerSgdHook::save, load).
//
// Both functions are collective, and all ranks get the same result: if one rank fails, all throw.
// Nothing is changed until every rank has found that its file fits. If an optimizer refuses its
// state, the optimizer may be changed, but the module is not.
//
// Thread safety: nothing may use the module or the optimizer meanwhile.
// Blocking: file I/O, and waiting for the other ranks, no longer than the group's timeout. So the
// timeout must be long enough for rank 0 to write.
// Errors: c10::ValueError on every rank; the text names the rank that failed and why. The reasons
// are a file that cannot be written or read, names and shapes that do not fit (named), and ranks
// with another file than rank 0. Files are compared by length and a 64-bit hash of all bytes.
// Errors between ranks are those of weft::ProcessGroup.
#pragma once

#include <cstdint>
#include <string>

#include <torch/nn/module.h>
#include <torch/optim/optimizer.h>

#include "weft/comm/process_group.h"

namespace weft {

struct CheckpointProgress {
  int64_t epoch = 0;
  int64_t step = 0;
  int64_t sampler_position = 0;  // DistributedSampler::position(): samples of the epoch used so far

  friend bool operator==(const CheckpointProgress&, const CheckpointProgress&) = default;
};

// `optimizer`: null to leave it out.
void save_checkpoint(ProcessGroup& group, const std::string& path, const torch::nn::Module& module,
                     const torch::optim::Optimizer* optimizer, const CheckpointProgress& progress);

// `optimizer`: null to leave its state in the file. Otherwise it must be of the same kind as the
// saved one, with its parameters in the same order.
CheckpointProgress load_checkpoint(ProcessGroup& group, const std::string& path,
                                   torch::nn::Module& module, torch::optim::Optimizer* optimizer);

}  // namespace weft
