// Computes SyncBatchNorm: statistics over all ranks, and the autograd node.
//
// Thread safety: free functions. They are collective, so all ranks call them in the same order.
// Blocking: they wait for the other ranks, also in the node's backward pass.
#pragma once

#include <memory>

#include <ATen/core/Tensor.h>

#include "weft/comm/process_group.h"

namespace weft::ddp_internal {

// Statistics of the values of all ranks, in double, on the input's device.
struct BatchStatistics {
  at::Tensor count;  // values for each channel, 0-dimensional
  at::Tensor mean;   // for each channel
  at::Tensor m2;     // for each channel: the sum of squared deviations from the mean

  at::Tensor var() const;           // 0 if there are no values
  at::Tensor unbiased_var() const;  // divided by one less than the count
};

// `input` is (N, C, ...). The result has equal bits on all ranks.
BatchStatistics gather_statistics(const at::Tensor& input, ProcessGroup& group);

struct Affine {
  at::Tensor weight, bias;  // undefined if there is none
  double eps = 1e-5;
};

// (input - mean) / sqrt(var + eps) * weight + bias. It is differentiable in input, weight and bias.
// The statistics count as functions of all ranks' inputs.
at::Tensor sync_batch_norm(const at::Tensor& input, const Affine& affine,
                           const BatchStatistics& statistics,
                           const std::shared_ptr<ProcessGroup>& group);

}  // namespace weft::ddp_internal
