// The network of the parameter-server job, cut in two: `FeatureLayers` run on every trainer,
// `ClassifierLayers`, which hold 98 % of the parameters (202,122 of 206,922), live on the server.
//
// What crosses the cut is one float tensor [batch, kFeatures], and its gradient on the way back.
// Weights depend on the seed alone, never on the process's random state, so that workers which are
// given the same seed start equal.
//
// Thread safety: concurrent `forward` calls are safe while nobody changes parameters or the mode.
#pragma once

#include <cstdint>

#include <torch/nn/module.h>
#include <torch/nn/modules/conv.h>
#include <torch/nn/modules/linear.h>

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

// How many of a batch's rows have their largest log-probability at the label.
int64_t count_correct(const at::Tensor& log_probabilities, const at::Tensor& labels);

}  // namespace weft::examples
