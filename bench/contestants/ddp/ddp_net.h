// The model itself. It is apart from ddp_step.h because its headers take long to compile.
#pragma once

#include <memory>
#include <vector>

#include <ATen/Context.h>
#include <torch/nn/module.h>
#include <torch/nn/modules/linear.h>

#include "weft/bench/contestants/ddp/ddp_step.h"

namespace weft::bench {

class Net final : public torch::nn::Module {
 public:
  Net() {
    at::manual_seed(1);
    for (int64_t i = 0; i < kLayers; ++i) {
      layers_.push_back(
          register_module("layer" + std::to_string(i), torch::nn::Linear(kFeatures, kFeatures)));
    }
  }
  at::Tensor forward(at::Tensor tensor) {
    for (torch::nn::Linear& layer : layers_) tensor = layer->forward(tensor);
    return tensor;
  }

 private:
  std::vector<torch::nn::Linear> layers_;
};

}  // namespace weft::bench
