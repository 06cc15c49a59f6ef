// Builds the models of the golden files (tests/ddp/golden/small_models.py) from the numbers in
// them.
//
// Thread safety: none.
#pragma once

#include <memory>
#include <string>
#include <vector>

#include <nlohmann/json.hpp>
#include <torch/nn/module.h>
#include <torch/nn/modules/batchnorm.h>
#include <torch/nn/modules/embedding.h>
#include <torch/nn/modules/linear.h>
#include <torch/types.h>
#include <torch/utils.h>

#include "weft/tests/ddp/golden.h"

namespace weft::testing {

// A linear layer that may use another layer's weight.
struct TiedLinearImpl : torch::nn::Module {
  TiedLinearImpl(const at::Tensor& shared, int64_t outputs)
      : weight(register_parameter("weight", shared)),
        bias(register_parameter("bias", torch::zeros({outputs}))) {}
  at::Tensor forward(const at::Tensor& x) { return torch::linear(x, weight, bias); }
  at::Tensor weight, bias;
};

struct SmallModel : torch::nn::Module {
  explicit SmallModel(const std::string& name) : kind(name) {
    if (kind == "embedding") {
      table = register_module("first",
                              torch::nn::Embedding(torch::nn::EmbeddingOptions(6, 3).sparse(true)));
    } else {
      first = register_module("first", torch::nn::Linear(4, 3));
    }
    second = register_module("second", torch::nn::Linear(3, 2));
    if (kind == "branches" || kind == "heads") {
      side = register_module("side", torch::nn::Linear(3, 2));
    }
    if (kind == "branches") never = register_module("never", torch::nn::Linear(3, 2));
    if (kind == "twice") square = register_module("square", torch::nn::Linear(3, 3));
    if (kind == "norm") norm = register_module("norm", torch::nn::BatchNorm1d(3));
    to(torch::kDouble);
    if (kind == "shared") {
      copy = register_module("copy", std::make_shared<TiedLinearImpl>(first->weight, 3));
      to(torch::kDouble);
    }
  }

  std::vector<at::Tensor> forward(const at::Tensor& x, bool use_side = true) {
    at::Tensor hidden = kind == "embedding" ? table(x) : first(x);
    if (kind == "norm") return {second(norm(hidden))};
    hidden = torch::tanh(kind == "embedding" ? hidden.mean(1) : hidden);
    if (kind == "twice") hidden = torch::tanh(square(torch::tanh(square(hidden))));
    if (kind == "shared") hidden = hidden * copy->forward(x);
    if (kind == "branches" && use_side) return {second(hidden) + side(hidden)};
    if (kind == "heads") return {second(hidden), side(hidden)};
    return {second(hidden)};
  }

  at::Tensor input_of(const nlohmann::json& step) const {
    return tensor_of(step.at("input"), kind == "embedding" ? at::kLong : at::kDouble);
  }
  static at::Tensor loss_of(const std::vector<at::Tensor>& outputs, const nlohmann::json& step) {
    return (outputs[0] - tensor_of(step.at("target"))).pow(2).sum() / 2;
  }
  // Copies the numbers into parameters and buffers of the same names.
  void load_numbers(const nlohmann::json& numbers) {
    const torch::NoGradGuard no_grad;
    for (auto& one : named_parameters()) {
      if (numbers.contains(one.key())) one.value().copy_(tensor_of(numbers.at(one.key())));
    }
    for (auto& one : named_buffers()) {
      if (numbers.contains(one.key())) {
        one.value().copy_(tensor_of(numbers.at(one.key()), one.value().scalar_type()));
      }
    }
  }

  const std::string kind;
  torch::nn::Embedding table = nullptr;
  torch::nn::Linear first = nullptr, second = nullptr, side = nullptr, never = nullptr,
                    square = nullptr;
  torch::nn::BatchNorm1d norm = nullptr;
  std::shared_ptr<TiedLinearImpl> copy;
};

}  // namespace weft::testing
