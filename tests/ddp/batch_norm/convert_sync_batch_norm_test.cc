#include <memory>
#include <string>
#include <vector>

#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <torch/nn/module.h>
#include <torch/nn/modules/activation.h>
#include <torch/nn/modules/batchnorm.h>
#include <torch/nn/modules/container/moduledict.h>
#include <torch/nn/modules/container/modulelist.h>
#include <torch/nn/modules/container/sequential.h>
#include <torch/nn/modules/linear.h>
#include <torch/utils.h>

#include "weft/ddp/batch_norm/sync_batch_norm.h"
#include "weft/tests/comm/failure_of.h"
#include "weft/tests/support/group_world.h"

namespace weft::testing {
namespace {

using at::Tensor;
using torch::nn::BatchNorm1d;
using torch::nn::Linear;
using torch::nn::Sequential;
using Group = std::shared_ptr<ProcessGroup>;
using ::testing::HasSubstr;

// A Sequential can hold another one only if its forward is no template.
struct StackImpl : torch::nn::SequentialImpl {
  using SequentialImpl::SequentialImpl;
  Tensor forward(const Tensor& input) { return SequentialImpl::forward(input); }
};
TORCH_MODULE(Stack);

TEST(ConvertSyncBatchNorm, NormalisesASequentialOverAllRanks) {
  const auto make = [] {
    torch::manual_seed(1);
    Stack inner(BatchNorm1d(torch::nn::BatchNormOptions(4).momentum(0.5)), torch::nn::ReLU());
    Sequential net(Linear(3, 4), inner, Linear(4, 2), BatchNorm1d(2));
    net->to(at::kDouble);
    return net;
  };
  Sequential reference = make();
  const Tensor whole = at::randn({6, 3}, at::kDouble);
  const Tensor expected = reference->forward(whole);
  std::vector<Sequential> nets = {make(), make()};
  run_ranks(2, [&](const Group& group) {
    Sequential& net = nets[static_cast<size_t>(group->rank())];
    EXPECT_EQ(convert_sync_batch_norm(net.ptr(), group), net.ptr());
    const Tensor output = net->forward(whole.split_with_sizes({2, 4})[group->rank()]);
    const Tensor mine = expected.split_with_sizes({2, 4})[group->rank()];
    EXPECT_LE((output - mine).abs().max().item<double>(), 1e-10);
    EXPECT_TRUE(at::allclose(net->named_buffers()["1.0.running_var"],
                             reference->named_buffers()["1.0.running_var"], 1e-10, 1e-10));
  });
}

TEST(ConvertSyncBatchNorm, KeepsParametersBuffersNamesAndMode) {
  run_ranks(1, [](const Group& group) {
    Sequential net(
        Linear(3, 4), BatchNorm1d(4),
        torch::nn::BatchNorm2d(torch::nn::BatchNormOptions(4).eps(0.5).affine(false)),
        torch::nn::BatchNorm3d(torch::nn::BatchNormOptions(4).track_running_stats(false)));
    net->eval();
    net[1]->train();
    net->named_parameters()["1.bias"].set_requires_grad(false);
    const auto parameters = net->named_parameters();
    const auto buffers = net->named_buffers();
    convert_sync_batch_norm(net.ptr(), group);

    const auto parameters_after = net->named_parameters();
    ASSERT_EQ(parameters_after.keys(), parameters.keys());
    for (const auto& item : parameters) {
      EXPECT_TRUE(item.value().is_same(parameters_after[item.key()])) << item.key();
    }
    EXPECT_FALSE(parameters_after["1.bias"].requires_grad());
    const auto buffers_after = net->named_buffers();
    ASSERT_EQ(buffers_after.keys(), buffers.keys());
    for (const auto& item : buffers) {
      EXPECT_TRUE(item.value().is_same(buffers_after[item.key()])) << item.key();
    }
    EXPECT_TRUE(net->at<SyncBatchNormImpl>(1).is_training());
    EXPECT_FALSE(net->at<SyncBatchNormImpl>(2).is_training());
    EXPECT_EQ(net->at<SyncBatchNormImpl>(2).options.eps(), 0.5);
    EXPECT_FALSE(net->at<SyncBatchNormImpl>(3).running_mean.defined());
  });
}

TEST(ConvertSyncBatchNorm, ReplacesInListsAndDictsAndKeepsWhatIsShared) {
  run_ranks(1, [](const Group& group) {
    BatchNorm1d shared(4);
    torch::nn::ModuleList list(shared, Linear(4, 4));
    torch::nn::ModuleDict dict;
    dict->update({{"norm", shared.ptr()}, {"linear", Linear(4, 4).ptr()}});
    torch::nn::ModuleList root(list, dict);
    convert_sync_batch_norm(root.ptr(), group);
    auto replaced = std::dynamic_pointer_cast<SyncBatchNormImpl>(list->ptr(0));
    ASSERT_NE(replaced, nullptr);
    EXPECT_EQ(replaced->group(), group);
    EXPECT_EQ(dict["norm"], replaced);
    EXPECT_EQ(list->named_children()["0"], replaced);
    EXPECT_EQ(dict->named_children()["norm"], replaced);
    EXPECT_NE(dict["linear"]->as<Linear>(), nullptr);
  });
}

TEST(ConvertSyncBatchNorm, ReturnsWhatReplacesTheRoot) {
  run_ranks(1, [](const Group& group) {
    BatchNorm1d norm(4);
    const auto root = convert_sync_batch_norm(norm.ptr(), group);
    ASSERT_NE(root->as<SyncBatchNormImpl>(), nullptr);
    EXPECT_TRUE(root->as<SyncBatchNormImpl>()->weight.is_same(norm->weight));
  });
}

struct Block : torch::nn::Module {
  Block()
      : linear(register_module("linear", Linear(4, 4))),
        plain(register_module("plain", BatchNorm1d(4))),
        rest(register_module("rest", Sequential(BatchNorm1d(4)))) {}
  Linear linear;
  BatchNorm1d plain;
  Sequential rest;
};

TEST(ConvertSyncBatchNorm, NamesMembersThatItCannotReplaceAndChangesNothing) {
  run_ranks(1, [](const Group& group) {
    Sequential inner(Linear(4, 4), BatchNorm1d(4));
    torch::nn::ModuleList root(inner, std::make_shared<Block>());
    EXPECT_THAT(value_error_of([&] { convert_sync_batch_norm(root.ptr(), group); }),
                HasSubstr(": 1.plain;"));
    EXPECT_NE(inner[1]->as<BatchNorm1d>(), nullptr);
    EXPECT_THAT(value_error_of([&] { convert_sync_batch_norm(nullptr, group); }),
                HasSubstr("no module"));
  });
}

struct ReadyBlock : torch::nn::Module {
  ReadyBlock() : norm(register_module("norm", SyncBatchNorm(4))) {}
  SyncBatchNorm norm;
};

TEST(ConvertSyncBatchNorm, GivesTheGroupToMembersThatAreReady) {
  run_ranks(2, [](const Group& group) {
    const auto block = std::make_shared<ReadyBlock>();
    convert_sync_batch_norm(block, group);
    EXPECT_EQ(block->norm->group(), group);
    const Tensor output =
        block->norm(at::full({2, 4}, static_cast<double>(group->rank()), at::kFloat));
    EXPECT_NEAR(output[0][0].item<double>(), group->rank() == 0 ? -1 : 1, 1e-3);
  });
}

}  // namespace
}  // namespace weft::testing
