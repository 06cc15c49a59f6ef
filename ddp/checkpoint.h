// Saves a replicated model once for all ranks of a group, and loads it on each of them.
//
//   weft::save_checkpoint(*group, "run", *model, &optimizer, {.epoch = 3, .step = 1200});
//   weft::CheckpointProgress at = weft::load_checkpoint(*group, "run", *model, &optimizer);
//
// Rank 0 writes the parameters and buffers by name, the optimizer's state and the progress. All
// others wait. The path is a folder (CheckpointFolder):
//
//   run/step-000007/model.safetensors       parameters and buffers; Python's safetensors reads it
//   run/step-000007/optimizer.safetensors   the optimizer's tensors and, as metadata, its numbers
//   run/step-000007/manifest.json           the progress, and the checksums of both files
//
// The folder must hold nothing but these checkpoints. Its steps count the saves. The folder keeps
// its old checkpoint until the new one is complete and flushed to the disk, and then only the new
// one. So if rank 0 dies while it saves, the old checkpoint is loaded the next time.
//
// Loading runs no code from the files. It reads them on every rank, compares them with their
// checksums, and copies the values into the module's own tensors. These may be on any device and of
// any type. A prefix "module." that all names of one side have (DataParallel's and DDP's) does not
// count.
//
// Earlier releases wrote one file, a LibTorch archive. This release still reads it, and rank 0 logs
// a warning. The next release will not read it. save_checkpoint with the same path replaces the
// file by a folder. Meanwhile the file is at "<path>.old-archive", where load_checkpoint finds it
// if rank 0 dies. Loading an archive can run code, so load only your own.
//
// State that is not in a replicated model and optimizer:
//   - ZeroRedundancyOptimizer: all ranks call consolidate_state_dict(0) before save_checkpoint.
//
//   - PostLocalSgdOptimizer is no torch::optim::Optimizer. Pass &post.optimizer(). After loading,
//     set the averager's step (ModelAverager::set_step).
//
//   - PowerSgdHook: its state differs between ranks and is not in the checkpoint. Each rank saves
//     and loads its own (PowerSgdHook::save, load).
//
// Both functions are collective, and all ranks get the same result: if one rank fails, all throw.
// Nothing is changed until every rank has found that its checkpoint fits. If an optimizer refuses
// its state, the optimizer may be changed, but the module is not.
//
// Thread safety: nothing may use the module or the optimizer meanwhile. Only one group at a time
// may save to one path.
// Blocking: file I/O, and waiting for the other ranks, no longer than the group's timeout. So the
// timeout must be long enough for rank 0 to write.
// Errors: c10::ValueError on every rank; the text names the rank that failed and why:
//   - a file cannot be written or read, or is damaged (named);
//   - names and shapes do not fit (named);
//   - safetensors cannot hold a tensor (named), because it is complex, sparse or quantized;
//   - a rank has another checkpoint than rank 0, by size and a 64-bit hash of all content.
// Errors between ranks are those of weft::ProcessGroup.
#pragma once

#include <cstdint>
#include <string>

#include <torch/nn/module.h>
#include <torch/optim/optimizer.h>

#include "weft/comm/process_group.h"

namespace weft {

struct CheckpointProgress {
  int64_t epoch = 0;  // not negative
  int64_t step = 0;
  int64_t sampler_position = 0;  // DistributedSampler::position(): samples of the epoch used so far

  friend bool operator==(const CheckpointProgress&, const CheckpointProgress&) = default;
};

// Makes the folder `path` and the folders above it. `optimizer`: null to leave it out.
void save_checkpoint(ProcessGroup& group, const std::string& path, const torch::nn::Module& module,
                     const torch::optim::Optimizer* optimizer, const CheckpointProgress& progress);

// `optimizer`: null to leave its state in the folder. Otherwise it must be of the same kind as the
// saved one, with its parameters in the same order.
CheckpointProgress load_checkpoint(ProcessGroup& group, const std::string& path,
                                   torch::nn::Module& module, torch::optim::Optimizer* optimizer);

}  // namespace weft
