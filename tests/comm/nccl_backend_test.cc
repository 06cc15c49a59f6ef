// NCCL in a group of one rank.
//
// NCCL refuses two ranks on one GPU. So a machine with one GPU can show that every operation
// reaches NCCL, but not that ranks agree.
#include <chrono>
#include <memory>
#include <sstream>
#include <vector>

#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <torch/csrc/distributed/c10d/HashStore.hpp>
#include <torch/torch.h>

#include "weft/comm/process_group.h"
#include "weft/ddp/batch_norm/sync_batch_norm.h"
#include "weft/ddp/data_parallel.h"
#include "weft/ddp/distributed_data_parallel.h"
#include "weft/ddp/hooks/comm_hooks.h"
#include "weft/ddp/hooks/power_sgd_hook.h"
#include "weft/ddp/zero_redundancy_optimizer.h"

namespace weft {
namespace {

using Op = ProcessGroup::Op;
using Group = std::shared_ptr<ProcessGroup>;

class Nccl : public ::testing::Test {
 protected:
  void SetUp() override {
#ifndef WEFT_WITH_CUDA
    GTEST_SKIP() << "built without WEFT_WITH_CUDA";
#endif
    if (torch::cuda::device_count() == 0) GTEST_SKIP() << "this machine has no CUDA device";
    torch::manual_seed(1);
    ProcessGroupOptions options;
    options.backend = "nccl";
    options.rank = 0;
    options.world_size = 1;
    options.store = c10::make_intrusive<c10d::HashStore>();
    options.timeout = std::chrono::seconds(60);
    group_ = init_process_group(options);
  }

  static torch::Tensor on_device(const torch::Tensor& tensor) { return tensor.to(torch::kCUDA); }

  Group group_;
};

TEST_F(Nccl, DoesEveryCollective) {
  EXPECT_EQ(group_->backend()->getBackendName(), "nccl");
  for (const auto type : {torch::kFloat, torch::kHalf, torch::kBFloat16, torch::kDouble,
                          torch::kInt, torch::kLong, torch::kByte, torch::kChar}) {
    const torch::Tensor wanted = on_device(torch::arange(12).reshape({3, 4}).to(type));
    const auto expect = [&](const char* what, const torch::Tensor& got) {
      EXPECT_TRUE(torch::equal(got, wanted)) << what << " of " << type << ": " << got;
    };
    for (const Op op : {Op::SUM, Op::AVG, Op::PRODUCT, Op::MIN, Op::MAX}) {
      const torch::Tensor all = wanted.clone(), one = wanted.clone(),
                          share = torch::zeros_like(wanted);
      group_->all_reduce(all, op);
      expect("all_reduce", all);
      group_->reduce(one, 0, op);
      expect("reduce", one);
      group_->reduce_scatter(share, wanted, op);
      expect("reduce_scatter", share);
    }
    const torch::Tensor told = wanted.clone(), given = torch::zeros_like(wanted),
                        exchanged = torch::zeros_like(wanted);
    group_->broadcast(told, 0);
    expect("broadcast", told);
    expect("all_gather", group_->all_gather(wanted).at(0));
    expect("gather", group_->gather(wanted, 0).at(0));
    group_->scatter(given, {wanted}, 0);
    expect("scatter", given);
    group_->all_to_all(exchanged, wanted);
    expect("all_to_all", exchanged);
  }
  group_->barrier();
}

TEST_F(Nccl, BroadcastsManyTensorsOfMixedTypes) {
  const std::vector<torch::Tensor> tensors = {
      on_device(torch::randn({5, 3})), on_device(torch::arange(7)),
      on_device(torch::randn({4, 2})).t(), on_device(torch::zeros({0}))};
  std::vector<torch::Tensor> before;
  for (const torch::Tensor& tensor : tensors) before.push_back(tensor.clone());
  group_->broadcast_coalesced(tensors, 0);
  for (size_t i = 0; i < tensors.size(); ++i) EXPECT_TRUE(torch::equal(tensors[i], before[i]));
}

TEST_F(Nccl, WorkAndItsFutureCanBeWaitedFor) {
  const torch::Tensor tensor = on_device(torch::full({1 << 20}, 3.0));
  const auto work = group_->all_reduce_async(tensor, Op::AVG);
  const auto future = work->getFuture();
  work->wait();
  future->waitAndThrow();
  EXPECT_EQ(tensor.sum().item<double>(), 3.0 * (1 << 20));
  EXPECT_TRUE(torch::equal(future->value().toTensorVector()[0], tensor));
}

TEST_F(Nccl, MakesGroupsOfItsRanks) {
  const Group alone = group_->new_group({0});
  ASSERT_NE(alone, nullptr);
  const torch::Tensor tensor = on_device(torch::ones({3}));
  alone->all_reduce(tensor);
  group_->all_reduce(tensor);
  EXPECT_EQ(tensor.sum().item<double>(), 3);
  EXPECT_THROW(group_->new_group({1}), c10::ValueError);
}

TEST_F(Nccl, RefusesWhatItCannotDo) {
  EXPECT_THROW(group_->all_reduce(torch::ones({3})), c10::Error);  // it is not on a device
  const torch::Tensor whole = on_device(torch::ones({3}, torch::kInt));
  EXPECT_THROW(group_->all_reduce(whole, Op::BAND), c10::Error);
  EXPECT_THROW(group_->monitored_barrier(std::chrono::seconds(1)), c10::Error);
}

torch::nn::Sequential convolutions() {
  return torch::nn::Sequential(torch::nn::Conv2d(torch::nn::Conv2dOptions(3, 8, 3).bias(false)),
                               torch::nn::BatchNorm2d(8), torch::nn::ReLU(), torch::nn::Flatten(),
                               torch::nn::Linear(8 * 6 * 6, 4));
}

// Three training steps of a module, and of its copy under DDP.
void expect_same_training(const std::shared_ptr<torch::nn::Module>& module,
                          torch::nn::Sequential alone, torch::nn::Sequential wrapped, Group group) {
  DdpOptions options;
  options.device_ids = {torch::Device(torch::kCUDA, 0)};
  options.bucket_cap_mb = {0.001};  // several buckets
  DistributedDataParallel ddp(wrapped, std::move(group), options);
  torch::optim::SGD one(alone->parameters(), 0.1), other(ddp.parameters(), 0.1);
  for (int step = 0; step < 3; ++step) {
    const torch::Tensor x = torch::randn({16, 3, 8, 8});
    one.zero_grad();
    other.zero_grad();
    alone->forward(x.to(torch::kCUDA)).pow(2).mean().backward();
    ddp(x).pow(2).mean().backward();  // DDP moves its inputs
    one.step();
    other.step();
  }
  const auto wanted = alone->parameters(), got = module->parameters();
  ASSERT_EQ(got.size(), wanted.size());
  for (size_t i = 0; i < got.size(); ++i) {
    EXPECT_TRUE(torch::allclose(got[i], wanted[i], 1e-4, 1e-6)) << "parameter " << i;
  }
}

TEST_F(Nccl, TrainsUnderDdpAsWithout) {
  torch::nn::Sequential alone = convolutions();
  alone->to(torch::kCUDA);
  const auto copy = std::dynamic_pointer_cast<torch::nn::SequentialImpl>(alone->clone());
  expect_same_training(copy, alone, torch::nn::Sequential(copy), group_);
}

TEST_F(Nccl, TrainsUnderDdpWithSyncBatchNorm) {
  torch::nn::Sequential alone = convolutions();
  alone->to(torch::kCUDA);
  const auto copy = std::dynamic_pointer_cast<torch::nn::SequentialImpl>(alone->clone());
  const auto converted =
      std::dynamic_pointer_cast<torch::nn::SequentialImpl>(convert_sync_batch_norm(copy, group_));
  ASSERT_NE(converted, nullptr);
  expect_same_training(converted, alone, torch::nn::Sequential(converted), group_);
}

// In a group of one, each hook leaves the gradients as they are, except for the error of half
// precision.
TEST_F(Nccl, TrainsWithEveryHook) {
  const auto train = [&](const CommHook& hook) {
    torch::manual_seed(2);
    torch::nn::Sequential net(torch::nn::Linear(8, 16), torch::nn::ReLU(),
                              torch::nn::Linear(16, 4));
    net->to(torch::kCUDA);
    DistributedDataParallel ddp(net, group_, {.bucket_cap_mb = {0.0003}});
    if (hook != nullptr) ddp.register_comm_hook(hook);
    torch::optim::SGD optimizer(ddp.parameters(), 0.1);
    for (int step = 0; step < 4; ++step) {
      optimizer.zero_grad();
      ddp(on_device(torch::ones({4, 8}) * (step + 1))).pow(2).mean().backward();
      optimizer.step();
    }
    torch::NoGradGuard no_grad;
    return torch::nn::utils::parameters_to_vector(ddp.parameters()).cpu();
  };
  const torch::Tensor wanted = train(nullptr);
  EXPECT_TRUE(torch::equal(train(allreduce_hook(group_)), wanted));
  EXPECT_TRUE(torch::allclose(train(fp16_compress_hook(group_)), wanted, 1e-2, 1e-3));
  EXPECT_TRUE(torch::allclose(train(bf16_compress_hook(group_)), wanted, 5e-2, 5e-3));
  const auto power = power_sgd_hook(
      group_,
      {.matrix_approximation_rank = 16, .start_power_sgd_iter = 2, .min_compression_rate = 0.1});
  EXPECT_TRUE(torch::allclose(train(power), wanted, 1e-3, 1e-4));
}

TEST_F(Nccl, ZeroKeepsItsStateWhereTheParametersAre) {
  const auto parameter = [] { return torch::ones({4}, torch::kCUDA).requires_grad_(); };
  const auto step = [](torch::optim::Optimizer& optimizer, torch::Tensor& x) {
    x.mutable_grad() = x.detach() * 2;
    optimizer.step();
  };
  using Zero = ZeroRedundancyOptimizer<torch::optim::Adam, torch::optim::AdamOptions>;
  torch::Tensor one = parameter(), other = parameter();
  Zero first({one}, torch::optim::AdamOptions(0.1), group_);
  torch::optim::Adam alone({other}, torch::optim::AdamOptions(0.1));
  for (int i = 0; i < 3; ++i) {
    step(first, one);
    step(alone, other);
  }
  EXPECT_TRUE(torch::equal(one, other));

  first.consolidate_state_dict(0);
  std::stringstream saved;
  torch::save(first, saved);
  torch::Tensor again = one.detach().clone().requires_grad_();
  Zero loaded({again}, torch::optim::AdamOptions(0.1), group_);
  torch::load(loaded, saved);
  for (const auto& [key, state] : loaded.local().state()) {
    const auto& adam = static_cast<const torch::optim::AdamParamState&>(*state);
    EXPECT_TRUE(adam.exp_avg().is_cuda());
    EXPECT_TRUE(adam.exp_avg_sq().is_cuda());
  }
  step(loaded, again);
  step(alone, other);
  EXPECT_TRUE(torch::equal(again, other));
}

TEST_F(Nccl, UnusedParametersAndAccumulation) {
  struct Branches : torch::nn::Module {
    Branches() {
      used = register_module("used", torch::nn::Linear(4, 4));
      unused = register_module("unused", torch::nn::Linear(4, 4));
    }
    torch::Tensor forward(const torch::Tensor& x) { return used(x); }
    torch::nn::Linear used = nullptr, unused = nullptr;
  };
  const auto module = std::make_shared<Branches>();
  module->to(torch::kCUDA);
  DdpOptions options;
  options.find_unused_parameters = true;
  DistributedDataParallel<Branches> ddp(module, group_, options);
  const torch::Tensor x = on_device(torch::ones({2, 4}));
  {
    const auto no_sync = ddp.no_sync();
    ddp(x).sum().backward();
  }
  ddp(x).sum().backward();
  EXPECT_TRUE(
      torch::allclose(module->used->weight.grad(), torch::full_like(x.new_ones({4, 4}), 4)));
  EXPECT_FALSE(module->unused->weight.grad().defined());
}

TEST_F(Nccl, DataParallelOnOneDeviceIsTheModuleItself) {
  torch::nn::Sequential net(torch::nn::Linear(4, 2));
  net->to(torch::kCUDA);
  const torch::Tensor x = on_device(torch::randn({6, 4}));
  EXPECT_TRUE(
      torch::allclose(data_parallel(net, x, {torch::Device(torch::kCUDA, 0)}), net->forward(x)));
}

}  // namespace
}  // namespace weft
