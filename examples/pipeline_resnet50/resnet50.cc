#include "weft/examples/pipeline_resnet50/resnet50.h"

#include <array>
#include <cmath>
#include <stdexcept>

#include <torch/torch.h>

#include "absl/strings/str_cat.h"

namespace weft::examples {
namespace {

constexpr int64_t kExpansion = 4;  // a block's last convolution is this much wider
struct Stage {
  int64_t blocks, width, stride;
};
constexpr std::array<Stage, 4> kStages{{{3, 64, 1}, {4, 128, 2}, {6, 256, 2}, {3, 512, 2}}};

torch::nn::Conv2d convolution(int64_t in, int64_t out, int64_t size, int64_t stride) {
  return torch::nn::Conv2d(
      torch::nn::Conv2dOptions(in, out, size).stride(stride).padding(size / 2).bias(false));
}

struct Stem : ResNetLayer {
  Stem()
      : convolve(register_module("conv1", convolution(3, 64, 7, 2))),
        normalise(register_module("bn1", torch::nn::BatchNorm2d(64))) {}
  at::Tensor forward(at::Tensor x) override {
    x = normalise(convolve(x)).relu_();
    return torch::max_pool2d(x, 3, 2, 1);
  }
  torch::nn::Conv2d convolve;
  torch::nn::BatchNorm2d normalise;
};

struct Bottleneck : ResNetLayer {
  Bottleneck(int64_t in, int64_t width, int64_t stride)
      : conv1(register_module("conv1", convolution(in, width, 1, 1))),
        conv2(register_module("conv2", convolution(width, width, 3, stride))),
        conv3(register_module("conv3", convolution(width, kExpansion * width, 1, 1))),
        bn1(register_module("bn1", torch::nn::BatchNorm2d(width))),
        bn2(register_module("bn2", torch::nn::BatchNorm2d(width))),
        bn3(register_module("bn3", torch::nn::BatchNorm2d(kExpansion * width))) {
    if (stride == 1 && in == kExpansion * width) return;
    shortcut = register_module("downsample",
                               torch::nn::Sequential(convolution(in, kExpansion * width, 1, stride),
                                                     torch::nn::BatchNorm2d(kExpansion * width)));
  }
  at::Tensor forward(at::Tensor x) override {
    at::Tensor y = bn1(conv1(x)).relu_();
    y = bn2(conv2(y)).relu_();
    y = bn3(conv3(y));
    return (y + (shortcut.is_empty() ? x : shortcut->forward(x))).relu_();
  }
  torch::nn::Conv2d conv1, conv2, conv3;
  torch::nn::BatchNorm2d bn1, bn2, bn3;
  torch::nn::Sequential shortcut = nullptr;
};

struct Classifier : ResNetLayer {
  explicit Classifier(int64_t classes)
      : scores(register_module("fc", torch::nn::Linear(512 * kExpansion, classes))) {}
  at::Tensor forward(at::Tensor x) override { return scores(x.mean({2, 3})); }
  torch::nn::Linear scores;
};

// Makes the layer with this index, counted from the stem.
std::shared_ptr<ResNetLayer> make_layer(int64_t place, int64_t classes) {
  if (place == 0) return std::make_shared<Stem>();
  int64_t block = place - 1, in = 64;
  for (const Stage& stage : kStages) {
    if (block < stage.blocks) {
      const bool first = block == 0;
      return std::make_shared<Bottleneck>(first ? in : kExpansion * stage.width, stage.width,
                                          first ? stage.stride : 1);
    }
    block -= stage.blocks;
    in = kExpansion * stage.width;
  }
  return std::make_shared<Classifier>(classes);
}

// Convolutions as in He et al., "Delving Deep into Rectifiers", 2015, by the number of outputs.
// Batch normalisations begin as the identity, which is LibTorch's default.
void initialize(torch::nn::Module& layer, uint64_t seed) {
  const torch::NoGradGuard no_grad;
  const at::Generator generator = at::detail::createCPUGenerator(seed);
  for (auto& parameter : layer.named_parameters()) {
    at::Tensor& value = parameter.value();
    if (value.dim() == 4) {
      const int64_t fan_out = value.size(0) * value.size(2) * value.size(3);
      value.normal_(0, std::sqrt(2.0 / static_cast<double>(fan_out)), generator);
    } else if (value.dim() == 2) {
      const double bound = 1 / std::sqrt(static_cast<double>(value.size(1)));
      value.uniform_(-bound, bound, generator);
    } else if (parameter.key() == "fc.bias") {
      value.zero_();
    }
  }
}

}  // namespace

ResNet50Part::ResNet50Part(int64_t first, int64_t last, int64_t classes, uint64_t seed) {
  if (first < 0 || first >= last || last > kResNet50Layers) {
    throw std::invalid_argument(absl::StrCat("[", first, ", ", last, ") is no range of the ",
                                             kResNet50Layers, " layers of ResNet50"));
  }
  if (classes < 1) {
    throw std::invalid_argument(absl::StrCat(classes, " classes; there must be one at least"));
  }
  for (int64_t place = first; place < last; ++place) {
    layers_.push_back(register_module(absl::StrCat("layer", place), make_layer(place, classes)));
    initialize(*layers_.back(), seed * kResNet50Layers + static_cast<uint64_t>(place));
  }
}

at::Tensor ResNet50Part::forward(at::Tensor x) const {
  for (const auto& layer : layers_) x = layer->forward(std::move(x));
  return x;
}

}  // namespace weft::examples
