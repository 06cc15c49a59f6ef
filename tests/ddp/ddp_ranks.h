// Shared parts of tests of DistributedDataParallel: a small model, its inputs, and a counting
// backend.
//
// Thread safety: free functions. CountingBackend is as thread safe as the backend that it wraps,
// but its counters are not synchronized.
#pragma once

#include <atomic>
#include <cstdint>
#include <functional>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include <gtest/gtest.h>
#include <torch/csrc/distributed/c10d/Backend.hpp>
#include <torch/nn/module.h>
#include <torch/nn/modules/linear.h>
#include <torch/types.h>
#include <torch/utils.h>

#include "weft/ddp/distributed_data_parallel.h"
#include "weft/tests/comm/failure_of.h"
#include "weft/tests/support/group_world.h"

namespace weft::testing {

using GroupPtr = std::shared_ptr<ProcessGroup>;

struct MlpImpl : torch::nn::Module {
  explicit MlpImpl(int64_t seed = 1) {
    torch::manual_seed(seed);
    first = register_module("first", torch::nn::Linear(5, 4));
    second = register_module("second", torch::nn::Linear(4, 3));
    to(torch::kDouble);
  }
  at::Tensor forward(const at::Tensor& x) { return second(torch::tanh(first(x))); }
  torch::nn::Linear first = nullptr, second = nullptr;
};
TORCH_MODULE(Mlp);

// Two layers beside each other. Each test decides what becomes of their outputs.
struct LeftAndRight : torch::nn::Module {
  LeftAndRight() {
    left = register_module("left", torch::nn::Linear(5, 2));
    right = register_module("right", torch::nn::Linear(5, 2));
    to(torch::kDouble);
  }
  torch::nn::Linear left = nullptr, right = nullptr;
};

// Computed from numbers, because all ranks' threads share torch's default generator.
inline at::Tensor input_of(int rank, int step = 0, int64_t rows = 3) {
  const at::Tensor base = torch::arange(rows * 5, torch::kDouble).reshape({rows, 5});
  return torch::sin(base * 0.7 + rank * 1.3 + step * 0.9);
}

// Makes copies of one model. Call it before the ranks start, since it seeds torch's generator.
inline std::vector<Mlp> copies(int count) {
  std::vector<Mlp> models;
  for (int i = 0; i < count; ++i) models.push_back(Mlp(7));
  return models;
}

inline at::Tensor loss_of(const at::Tensor& output) { return output.pow(2).mean(); }

inline void expect_close(const at::Tensor& one, const at::Tensor& other, double tolerance = 1e-12) {
  ASSERT_TRUE(one.defined() && other.defined());
  EXPECT_LE((one - other).abs().max().item<double>(), tolerance) << one << "\n" << other;
}

inline void expect_gradients(const torch::nn::Module& own, const torch::nn::Module& truth,
                             double tolerance = 1e-12) {
  const auto left = own.parameters(), right = truth.parameters();
  ASSERT_EQ(left.size(), right.size());
  for (size_t i = 0; i < left.size(); ++i) {
    expect_close(left[i].grad(), right[i].grad(), tolerance);
  }
}

inline void expect_parameters(const torch::nn::Module& own, const torch::nn::Module& truth,
                              double tolerance = 1e-12) {
  const auto left = own.parameters(), right = truth.parameters();
  ASSERT_EQ(left.size(), right.size());
  for (size_t i = 0; i < left.size(); ++i) {
    expect_close(left[i].detach(), right[i].detach(), tolerance);
  }
}

// The model with the gradients over the inputs of some ranks, computed in one process. Call it
// before the ranks start, like copies().
inline Mlp whole_of(const std::vector<int>& ranks, const std::vector<int>& steps = {0}) {
  Mlp whole(7);
  for (const int step : steps) {
    std::vector<at::Tensor> inputs;
    for (const int rank : ranks) inputs.push_back(input_of(rank, step));
    loss_of(whole->forward(torch::cat(inputs))).backward();
  }
  return whole;
}

class CountingBackend final : public c10d::Backend {
 public:
  using Work = c10::intrusive_ptr<c10d::Work>;
  using Tensors = std::vector<at::Tensor>;

  explicit CountingBackend(c10::intrusive_ptr<c10d::Backend> inner)
      : Backend(inner->getRank(), inner->getSize()), inner_(std::move(inner)) {}

  const std::string getBackendName() const override { return "counting"; }
  Work allreduce(Tensors& tensors, const c10d::AllreduceOptions& options) override {
    ++all_reduces;
    return inner_->allreduce(tensors, options);
  }
  Work broadcast(Tensors& tensors, const c10d::BroadcastOptions& options) override {
    ++broadcasts;
    return inner_->broadcast(tensors, options);
  }
  Work allgather(std::vector<Tensors>& outputs, Tensors& inputs,
                 const c10d::AllgatherOptions& options) override {
    ++all_gathers;
    return inner_->allgather(outputs, inputs, options);
  }
  bool supportsTensorAlloc(c10::DeviceIndex device) override {
    return inner_->supportsTensorAlloc(device);
  }
  at::Tensor allocateTensor(long size, at::TensorOptions options) override {
    ++allocated;
    return inner_->allocateTensor(size, options);
  }

  int all_reduces = 0, broadcasts = 0, all_gathers = 0, allocated = 0;

 private:
  const c10::intrusive_ptr<c10d::Backend> inner_;
};

// A group of the same ranks whose backend counts its calls.
struct Counted {
  explicit Counted(const GroupPtr& group)
      : backend(c10::make_intrusive<CountingBackend>(group->backend())),
        counted(std::make_shared<ProcessGroup>(backend, group->store(), ProcessGroupOptions(),
                                               group->global_ranks())) {}
  const c10::intrusive_ptr<CountingBackend> backend;
  const GroupPtr counted;
};

}  // namespace weft::testing
