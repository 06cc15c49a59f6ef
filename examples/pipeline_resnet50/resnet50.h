// ResNet50 (He et al., "Deep Residual Learning for Image Recognition", 2016, table 1), cut into
// layers that may lie on different workers. The layers are the first convolution, 16 blocks of
// three convolutions, and the classifier. As in torchvision, a block halves the picture in its
// second convolution.
//
// Pictures are float [n, 3, height, width]. Tensors between layers are [n, channels, h, w], and the
// last layer gives [n, classes] scores. The model has 25,557,032 parameters with 1,000 classes.
//
// Thread safety: as other modules of LibTorch. In training mode a forward writes the running
// statistics of its batch normalisations.
#pragma once

#include <cstdint>
#include <memory>
#include <string>
#include <vector>

#include <torch/nn/module.h>

#include "weft/dist_optim/hosted_module.h"

namespace weft::examples {

inline constexpr int64_t kResNet50Layers = 18;

struct ResNetLayer : torch::nn::Module {
  virtual at::Tensor forward(at::Tensor x) = 0;
};

// Layers first to last-1. Weights depend only on the seed and on the index of the layer, so the
// parts together equal the whole model.
class ResNet50Part : public torch::nn::Module {
 public:
  // Throws std::invalid_argument if the range is empty or not within the 18 layers.
  ResNet50Part(int64_t first, int64_t last, int64_t classes, uint64_t seed);
  at::Tensor forward(at::Tensor x) const;
  const std::vector<std::shared_ptr<ResNetLayer>>& layers() const { return layers_; }

 private:
  std::vector<std::shared_ptr<ResNetLayer>> layers_;
};

WEFT_REGISTER_MODULE(ResNet50Part, int64_t, int64_t, int64_t, uint64_t);

}  // namespace weft::examples
