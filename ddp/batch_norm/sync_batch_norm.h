// Batch normalisation over the batches of all ranks of a group as if they were one.
//
//   weft::SyncBatchNorm norm(torch::nn::BatchNormOptions(64).momentum(0.2), group);
//   auto root = weft::convert_sync_batch_norm(model.ptr(), group);
//
// In training the ranks exchange each channel's count, mean and sum of squared deviations (in
// double) and so normalise alike and keep equal running statistics, bit for bit; the backward pass
// adds up two numbers per channel. Batches may differ in size and be empty; an empty one still
// takes part, in the forward pass and in the backward pass. Gradients of weight and bias are those
// of the rank's own batch: DDP averages them. Without a group, in a group of one, and in eval mode
// it is torch::nn::BatchNorm.
//
// Inputs: (N, C), (N, C, L), (N, C, H, W) or (N, C, D, H, W) of a floating type, on any device. The
// exchange is through host memory unless the group's backend is NCCL.
//
// Thread safety: as torch::nn::Module; forward and backward are collective: all ranks, same order.
// Ranks that train on one GPU must be processes: within one, autograd has a single thread for the
// GPU, where the ranks' backward passes would wait for each other until the timeout.
// Lifetime: shares the group. Blocking: forward and backward wait for the other ranks, no longer
// than the group's timeout.
// Errors: c10::ValueError: an input that does not fit (on its rank alone); ranks that differ in
// channels or type, and a batch of one value per channel in all (on every rank). What goes wrong
// between ranks: as weft::ProcessGroup. Differentiating twice is a c10::Error.
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

  // With the very parameters and buffers of a torch::nn::BatchNorm1d, 2d or 3d, its options and its
  // mode.
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

  // Public, as those of torch::nn::BatchNorm; undefined where the options leave them out.
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
  // Counts a batch; how much of the running statistics it replaces.
  double next_momentum();

  std::shared_ptr<ProcessGroup> group_;        // shared with the caller and the graph; may be null
  std::optional<at::ScalarType> agreed_type_;  // of inputs, last found equal on all ranks
};

TORCH_MODULE(SyncBatchNorm);

// Replaces every torch::nn::BatchNorm1d, 2d and 3d in the module by a SyncBatchNorm with the same
// parameters and buffers, and gives the group to every SyncBatchNorm that is there already. Returns
// the module, or if it is a BatchNorm itself, what replaces it.
//
// Only Sequential, ModuleList and ModuleDict (at any depth) hold their children so that they can be
// replaced. A BatchNorm that is a member of another module stays what its member's type says:
// c10::ValueError naming all of those, and nothing is changed. Declare such members as
// weft::SyncBatchNorm; until a group is given to it, that is a BatchNorm.
std::shared_ptr<torch::nn::Module> convert_sync_batch_norm(
    const std::shared_ptr<torch::nn::Module>& module, const std::shared_ptr<ProcessGroup>& group);

}  // namespace weft
