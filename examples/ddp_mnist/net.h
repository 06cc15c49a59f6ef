// The network of the data-parallel job: two convolutions and two linear layers, 105,866 parameters.
//
// Thread safety: concurrent `forward` calls are safe while no thread changes parameters.
#pragma once

#include <ATen/core/Tensor.h>
#include <torch/nn/module.h>
#include <torch/nn/modules/conv.h>
#include <torch/nn/modules/linear.h>

namespace weft::examples {

class NetImpl : public torch::nn::Module {
 public:
  NetImpl();
  // Maps pictures [n, 1, 28, 28] to the scores of the classes [n, 10].
  at::Tensor forward(const at::Tensor& images);

 private:
  torch::nn::Conv2d first_, second_;
  torch::nn::Linear hidden_, output_;
};
TORCH_MODULE(Net);

}  // namespace weft::examples
