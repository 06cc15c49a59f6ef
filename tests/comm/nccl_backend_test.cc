// NCCL in a group of one: it refuses two ranks on one GPU, so one machine with one GPU shows that
// every operation reaches it, not that ranks agree.
#include <chrono>
#include <memory>
#include <vector>

#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <torch/csrc/distributed/c10d/HashStore.hpp>
#include <torch/torch.h>

#include "weft/comm/process_group.h"
#include "weft/ddp/distributed_data_parallel.h"
#include "weft/ddp/sync_batch_norm.h"

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
  EXPECT_THROW(group_->all_reduce(torch::ones({3})), c10::Error);  // not on a device
  const torch::Tensor whole = on_device(torch::ones({3}, torch::kInt));
  EXPECT_THROW(group_->all_reduce(whole, Op::BAND), c10::Error);
  EXPECT_THROW(group_->monitored_barrier(std::chrono::seconds(1)), c10::Error);
}

torch::nn::Sequential convolutions() {
  return torch::nn::Sequential(torch::nn::Conv2d(torch::nn::Conv2dOptions(3, 8, 3).bias(false)),
                               torch::nn::BatchNorm2d(8), torch::nn::ReLU(), torch::nn::Flatten(),
                               torch::nn::Linear(8 * 6 * 6, 4));
}

// Three steps of a module and of its copy under DDP.
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

}  // namespace
}  // namespace weft
