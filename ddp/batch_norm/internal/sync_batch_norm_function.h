// The arithmetic of SyncBatchNorm: statistics over all ranks, and the autograd node.
//
// Thread safety: free functions; collective, so all ranks call them in the same order.
// Blocking: until the other ranks have come, also in the node's backward pass.
#pragma once

#include <memory>

#include <ATen/core/Tensor.h>

#include "weft/comm/process_group.h"

namespace weft::ddp_internal {

// Of all ranks' values, in double, on the input's device.
struct BatchStatistics {
  at::Tensor count;  // of values per channel, 0-dimensional
  at::Tensor mean;   // per channel
  at::Tensor m2;     // per channel: the sum of squared deviations from the mean

  at::Tensor var() const;           // 0 of no values
  at::Tensor unbiased_var() const;  // divided by one less than the count
};

// `input`: (N, C, ...). Equal bits on all ranks.
BatchStatistics gather_statistics(const at::Tensor& input, ProcessGroup& group);

struct Affine {
  at::Tensor weight, bias;  // or undefined
  double eps = 1e-5;
};

// (input - mean) / sqrt(var + eps) * weight + bias, differentiable in input, weight and bias; the
// statistics count as functions of all ranks' inputs.
at::Tensor sync_batch_norm(const at::Tensor& input, const Affine& affine,
                           const BatchStatistics& statistics,
                           const std::shared_ptr<ProcessGroup>& group);

}  // namespace weft::ddp_internal
