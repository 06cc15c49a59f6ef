// Evaluates a checkpoint of the parameter-server job without the job: both halves of the network in
// one process, without dropout.
//
// Thread safety: free functions.
// Errors: std::out_of_range, a shard or parameter that is missing.
#pragma once

#include <cstdint>

#include <c10/core/GradMode.h>
#include <torch/nn/module.h>

#include "weft/checkpoint/checkpoint.h"
#include "weft/examples/parameter_server/model.h"
#include "weft/examples/support/fashion_mnist.h"

namespace weft::testing {

inline void load_layers(torch::nn::Module& layers, const TensorMap& values) {
  const c10::AutoGradMode no_grad(false);
  for (const auto& item : layers.named_parameters()) item.value().copy_(values.at(item.key()));
}

// Returns the fraction of right answers.
inline double accuracy_of(const Checkpoint& checkpoint, const examples::LabelledImages& pictures) {
  constexpr int64_t kBatch = 500;
  const c10::AutoGradMode no_grad(false);
  examples::FeatureLayers features(/*seed=*/0);
  examples::ClassifierLayers classifier(/*seed=*/0);
  load_layers(features, checkpoint.shards.at("trainer").tensors);
  load_layers(classifier, checkpoint.shards.at("server").tensors);
  classifier.eval();
  int64_t right = 0;
  for (int64_t begin = 0; begin < pictures.size(); begin += kBatch) {
    const examples::Batch batch = examples::make_batch(pictures, begin, begin + kBatch);
    right +=
        examples::count_correct(classifier.forward(features.forward(batch.images)), batch.labels);
  }
  return static_cast<double>(right) / static_cast<double>(pictures.size());
}

}  // namespace weft::testing
