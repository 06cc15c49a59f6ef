#include "weft/examples/parameter_server/model.h"

#include <algorithm>
#include <cmath>

#include <ATen/CPUGeneratorImpl.h>
#include <ATen/ops/argmax.h>
#include <ATen/ops/dropout.h>
#include <ATen/ops/log_softmax.h>
#include <ATen/ops/max_pool2d.h>
#include <ATen/ops/relu.h>
#include <torch/utils.h>

namespace weft::examples {

FeatureLayers::FeatureLayers(uint64_t seed)
    : first_(torch::nn::Conv2dOptions(1, 16, 3).padding(1)),
      second_(torch::nn::Conv2dOptions(16, 32, 3).padding(1)) {
  register_module("first", first_);
  register_module("second", second_);
  initialize(*this, seed);
}

at::Tensor FeatureLayers::forward(const at::Tensor& images) {
  // Max-pooling before relu gives the same result as after it, and relu has a quarter of the work.
  at::Tensor x = at::relu(at::max_pool2d(first_->forward(images), 2));
  x = at::relu(at::max_pool2d(second_->forward(x), 2));
  return x.flatten(1);
}

ClassifierLayers::ClassifierLayers(uint64_t seed, double dropout)
    : hidden_(kFeatures, kHidden), output_(kHidden, kClasses), dropout_(dropout) {
  register_module("hidden", hidden_);
  register_module("output", output_);
  initialize(*this, seed);
}

at::Tensor ClassifierLayers::forward(const at::Tensor& features) {
  at::Tensor x = at::relu(hidden_->forward(features));
  x = at::dropout(x, dropout_, is_training());
  return at::log_softmax(output_->forward(x), 1);
}

void initialize(torch::nn::Module& module, uint64_t seed) {
  torch::NoGradGuard no_grad;
  at::Generator generator = at::detail::createCPUGenerator(seed);
  for (at::Tensor& parameter : module.parameters()) {
    if (parameter.dim() < 2) {
      parameter.zero_();
      continue;
    }
    const double fan_in = static_cast<double>(parameter.numel()) / parameter.size(0);
    const double bound = std::sqrt(6.0 / fan_in);
    parameter.uniform_(-bound, bound, generator);
  }
}

double accuracy(const LabelledImages& pictures,
                const std::function<at::Tensor(const at::Tensor& images)>& forward) {
  constexpr int64_t kTogether = 500;
  const torch::NoGradGuard no_grad;
  int64_t right = 0;
  for (int64_t begin = 0; begin < pictures.size(); begin += kTogether) {
    const Batch batch = make_batch(pictures, begin, std::min(pictures.size(), begin + kTogether));
    right += count_correct(forward(batch.images), batch.labels);
  }
  return static_cast<double>(right) / static_cast<double>(pictures.size());
}

int64_t count_correct(const at::Tensor& log_probabilities, const at::Tensor& labels) {
  return at::argmax(log_probabilities, 1).eq(labels).sum().item<int64_t>();
}

}  // namespace weft::examples
