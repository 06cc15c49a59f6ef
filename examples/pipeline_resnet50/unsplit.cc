#include "weft/examples/pipeline_resnet50/unsplit.h"

#include <vector>

#include <torch/torch.h>

#include "weft/examples/pipeline_resnet50/loss.h"

namespace weft::examples {

UnsplitResNet50::UnsplitResNet50(int64_t classes, uint64_t seed, double learning_rate)
    : model_(0, kResNet50Layers, classes, seed), optimizer_(model_.parameters(), learning_rate) {}

double UnsplitResNet50::step(const at::Tensor& images, const at::Tensor& labels,
                             int64_t micro_batches) {
  const std::vector<at::Tensor> inputs = images.tensor_split(micro_batches);
  const std::vector<at::Tensor> targets = labels.tensor_split(micro_batches);
  double mean = 0;
  for (size_t i = 0; i < inputs.size(); ++i) {
    const double weight =
        static_cast<double>(inputs[i].size(0)) / static_cast<double>(images.size(0));
    const at::Tensor loss = squared_error(model_.forward(inputs[i]), targets[i]);
    loss.backward(at::full_like(loss, weight));
    mean += weight * loss.item<double>();
  }
  optimizer_.step();
  optimizer_.zero_grad();
  return mean;
}

}  // namespace weft::examples
