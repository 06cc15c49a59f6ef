// ResNet50 in one process, to compare a pipeline with. It takes the same micro-batches, one after
// the other, and has the same gradients.
//
// Thread safety: an object belongs to one thread.
// Blocking: step().
// Errors: those of LibTorch.
#pragma once

#include <cstdint>

#include <torch/optim/sgd.h>

#include "weft/examples/pipeline_resnet50/resnet50.h"

namespace weft::examples {

class UnsplitResNet50 {
 public:
  UnsplitResNet50(int64_t classes, uint64_t seed, double learning_rate);

  // One step with squared_error(). Returns the loss.
  double step(const at::Tensor& images, const at::Tensor& labels, int64_t micro_batches);
  const ResNet50Part& model() const { return model_; }

 private:
  ResNet50Part model_;
  torch::optim::SGD optimizer_;
};

}  // namespace weft::examples
