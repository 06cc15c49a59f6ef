// The network of the parameter-server job, cut in two. `FeatureLayers` run on every trainer.
// `ClassifierLayers` live on the server and hold 98 % of the parameters (202,122 of 206,922).
//
// One float tensor [batch, kFeatures] crosses the cut, and its gradient comes back. Weights depend
// only on the seed, never on the random state of the process. So workers with the same seed start
// with equal weights.
//
// Thread safety: concurrent `forward` calls are safe while no thread changes parameters or the
// mode.
#pragma once

#include <cstdint>
#include <functional>

#include <torch/nn/module.h>
#include <torch/nn/modules/conv.h>
#include <torch/nn/modules/linear.h>

#include "weft/examples/support/fashion_mnist.h"

namespace weft::examples {

inline constexpr int64_t kImageSide = 28;
inline constexpr int64_t kClasses = 10;
inline constexpr int64_t kFeatures = 32 * 7 * 7;
inline constexpr int64_t kHidden = 128;
inline constexpr double kDropout = 0.2;

// Two convolutions, each followed by a 2x2 maximum: [batch, 1, 28, 28] to [batch, kFeatures].
class FeatureLayers : public torch::nn::Module {
 public:
  explicit FeatureLayers(uint64_t seed);
  at::Tensor forward(const at::Tensor& images);

 private:
  torch::nn::Conv2d first_;
  torch::nn::Conv2d second_;
};

// Two fully connected layers with dropout between them: [batch, kFeatures] to log-probabilities
// [batch, kClasses]. In evaluation mode nothing is dropped.
class ClassifierLayers : public torch::nn::Module {
 public:
  explicit ClassifierLayers(uint64_t seed, double dropout = kDropout);
  at::Tensor forward(const at::Tensor& features);

 private:
  torch::nn::Linear hidden_;
  torch::nn::Linear output_;
  double dropout_;
};

// Fills every parameter of a module from `seed`: matrices and kernels with He's uniform
// distribution, biases with 0. Equal seeds and shapes give equal weights on every machine of one
// kind.
void initialize(torch::nn::Module& module, uint64_t seed);

// Returns the fraction of the pictures for which `forward` gives the right label. Records no
// gradients. `forward`: [batch, 1, 28, 28] to log-probabilities [batch, kClasses].
double accuracy(const LabelledImages& pictures,
                const std::function<at::Tensor(const at::Tensor& images)>& forward);

// Counts the rows of a batch whose largest log-probability is at the label.
int64_t count_correct(const at::Tensor& log_probabilities, const at::Tensor& labels);

}  // namespace weft::examples
