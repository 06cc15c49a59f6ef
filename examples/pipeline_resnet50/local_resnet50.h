// ResNet50 in one process, without calls: unsplit, or in shards on threads. The sweep compares the
// pipeline on workers with both.
//
// It divides a batch into micro-batches as the pipeline on workers does, and gives the same
// gradients.
//
// Thread safety: an object belongs to one thread.
// Blocking: backward.
// Errors: std::invalid_argument (a batch that does not divide), and those of LibTorch.
#pragma once

#include <cstdint>
#include <memory>
#include <vector>

#include <torch/torch.h>

#include "weft/async/serial_thread.h"
#include "weft/examples/pipeline_resnet50/pipeline.h"
#include "weft/examples/pipeline_resnet50/resnet50.h"

namespace weft::examples {

// One thread, or one for each shard.
class LocalResNet50 {
 public:
  // {0, 18} is the unsplit model.
  LocalResNet50(const Cuts& cuts, int64_t classes, uint64_t seed);

  // Runs forward and backward. The gradients are added to `.grad`. Returns the loss.
  double backward(const Pictures& batch, int64_t micro_batches, const Loss& loss);
  std::vector<at::Tensor> parameters() const;
  const std::vector<std::shared_ptr<ResNet50Part>>& parts() const { return parts_; }

 private:
  struct Pass;
  void forward_through(const std::shared_ptr<Pass>& pass, size_t part, size_t micro_batch,
                       const at::Tensor& x);
  void backward_through(const std::shared_ptr<Pass>& pass, size_t part, size_t micro_batch,
                        const at::Tensor& gradient);

  std::vector<std::shared_ptr<ResNet50Part>> parts_;
  std::vector<std::unique_ptr<SerialThread>> threads_;  // none if unsplit
};

}  // namespace weft::examples
