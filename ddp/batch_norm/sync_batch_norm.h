// Normalises over the batches of all ranks of a group, as if they were one batch.
//
//   weft::SyncBatchNorm norm(torch::nn::BatchNormOptions(64).momentum(0.2), group);
//   auto root = weft::convert_sync_batch_norm(model.ptr(), group);
//
// In training the ranks exchange the count, mean and sum of squared deviations of each channel (in
// double). So they normalise alike and keep equal running statistics, bit for bit. The backward
// pass adds up two numbers for each channel. Batches may differ in size and be empty. An empty one
// still takes part, in the forward pass and in the backward pass. Gradients of weight and bias are
// those of the rank's own batch, and DDP averages them. Without a group, in a group of one, and in
// eval mode it is torch::nn::BatchNorm.
//
// Inputs: (N, C), (N, C, L), (N, C, H, W) or (N, C, D, H, W) of a floating type, on any device. The
// exchange goes through host memory unless the group's backend is NCCL.
//
// Thread safety: as torch::nn::Module. Forward and backward are collective: all ranks, in the same
// order. Ranks that train on one GPU must be processes. Within one process autograd has a single
// thread for the GPU, where the ranks' backward passes would wait for each other until the timeout.
// Lifetime: shares the group.
// Blocking: forward and backward wait for the other ranks, no longer than the group's timeout.
// Errors of one rank alone: c10::ValueError (an input that does not fit).
// Errors on every rank: c10::ValueError (ranks differ in channels or type, or all batches together
// have one value for each channel).
// Errors between ranks: as weft::ProcessGroup. Differentiating twice is a c10::Error.
#pragma once

#include <cstdint>
#include <memory>
#include <optional>
#include <ostream>

#include <ATen/core/Tensor.h>
#include <torch/nn/cloneable.h>
#include <torch/nn/options/batchnorm.h>
#include <torch/nn/pimpl.h>

#include "weft/comm/process_group.h"

namespace weft {

class SyncBatchNormImpl : public torch::nn::Cloneable<SyncBatchNormImpl> {
 public:
  explicit SyncBatchNormImpl(const torch::nn::BatchNormOptions& options,
                             std::shared_ptr<ProcessGroup> group = nullptr);

  // Makes one that shares the parameters and buffers of a torch::nn::BatchNorm1d, 2d or 3d, and has
  // its options and its mode.
  template <class BatchNormImpl>
  static std::shared_ptr<SyncBatchNormImpl> sharing(const BatchNormImpl& norm,
                                                    std::shared_ptr<ProcessGroup> group) {
    auto sync =
        std::make_shared<SyncBatchNormImpl>(norm.options,
                                            Tensors{norm.weight, norm.bias, norm.running_mean,
                                                    norm.running_var, norm.num_batches_tracked},
                                            std::move(group));
    sync->train(norm.is_training());
    return sync;
  }

  at::Tensor forward(const at::Tensor& input);

  void reset() override;
  void reset_parameters();
  void reset_running_stats();
  void pretty_print(std::ostream& stream) const override;

  const std::shared_ptr<ProcessGroup>& group() const { return group_; }
  void set_group(std::shared_ptr<ProcessGroup> group);  // null: this process alone

  // Public, as in torch::nn::BatchNorm. Undefined if the options leave them out.
  torch::nn::BatchNormOptions options;
  at::Tensor weight, bias;
  at::Tensor running_mean, running_var, num_batches_tracked;

  struct Tensors {
    at::Tensor weight, bias, running_mean, running_var, num_batches_tracked;
  };
  // For sharing().
  SyncBatchNormImpl(const torch::nn::BatchNormOptions& options, const Tensors& tensors,
                    std::shared_ptr<ProcessGroup> group);

 private:
  void register_tensors(const Tensors& tensors);
  void check_input(const at::Tensor& input) const;
  void check_ranks_agree(const at::Tensor& input);
  at::Tensor forward_alone(const at::Tensor& input);
  // Counts a batch. Returns how much of the running statistics it replaces.
  double next_momentum();

  std::shared_ptr<ProcessGroup> group_;        // shared with the caller and the graph; may be null
  std::optional<at::ScalarType> agreed_type_;  // of inputs; last found equal on all ranks
};

TORCH_MODULE(SyncBatchNorm);

// Replaces every torch::nn::BatchNorm1d, 2d and 3d in the module by a SyncBatchNorm with the same
// parameters and buffers. It also gives the group to every SyncBatchNorm that is there already.
// Returns the module. If the module is a BatchNorm itself, it returns the replacement.
//
// Only Sequential, ModuleList and ModuleDict (at any depth) hold their children so that they can be
// replaced. A BatchNorm that is a member of another module keeps its member's type. In that case
// the function throws c10::ValueError, which names all such members, and changes nothing. Declare
// such members as weft::SyncBatchNorm. Until it gets a group, it is a BatchNorm.
std::shared_ptr<torch::nn::Module> convert_sync_batch_norm(
    const std::shared_ptr<torch::nn::Module>& module, const std::shared_ptr<ProcessGroup>& group);

}  // namespace weft
