// The model: an embedding table, of which the parameter servers have one for users and one for
// items, and the dense part, which makes a rating out of two embeddings.
//
// Thread safety: none. HostedModule and DistributedDataParallel call them in turn.
#pragma once

#include <cstdint>

#include <ATen/CPUGeneratorImpl.h>
#include <torch/torch.h>

#include "weft/dist_optim/hosted_module.h"

namespace weft::examples {

inline constexpr int64_t kWidth = 8, kHidden = 32;  // of an embedding, of the dense part

// An embedding table on a parameter server. A backward pass that looked up 100 rows has a gradient
// of 100 rows, and the optimizer changes only these rows.
class Table : public torch::nn::Module {
 public:
  Table(int64_t rows, uint64_t seed) {
    rows_ = register_module(
        "rows", torch::nn::Embedding(torch::nn::EmbeddingOptions(rows, kWidth).sparse(true)));
    const torch::NoGradGuard no_grad;
    rows_->weight.normal_(0, 0.1, at::detail::createCPUGenerator(seed));
  }
  at::Tensor forward(const at::Tensor& indices) { return rows_(indices); }

 private:
  torch::nn::Embedding rows_ = nullptr;
};
WEFT_REGISTER_MODULE(Table, int64_t, uint64_t);

// The dense part, on every trainer. All replicas start with the weights of rank 0.
class Dense : public torch::nn::Module {
 public:
  Dense() {
    hidden_ = register_module("hidden", torch::nn::Linear(3 * kWidth, kHidden));
    output_ = register_module("output", torch::nn::Linear(kHidden, 1));
  }
  at::Tensor forward(const at::Tensor& users, const at::Tensor& items) {
    const at::Tensor pairs = torch::cat({users, items, users * items}, 1);
    return output_(torch::relu(hidden_(pairs))).squeeze(1);
  }

 private:
  torch::nn::Linear hidden_ = nullptr, output_ = nullptr;
};

}  // namespace weft::examples
