#include "weft/ddp/data_parallel.h"

#include <memory>
#include <string>
#include <vector>

#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <torch/nn/cloneable.h>
#include <torch/nn/modules/linear.h>
#include <torch/optim/sgd.h>
#include <torch/types.h>
#include <torch/utils.h>

#include "weft/base/thread.h"
#include "weft/tests/comm/failure_of.h"

namespace weft::testing {
namespace {

using at::Tensor;
using torch::Device;
using Devices = std::vector<Device>;
using ::testing::HasSubstr;

struct NetImpl : torch::nn::Cloneable<NetImpl> {
  NetImpl() { reset(); }
  void reset() override {
    first = register_module("first", torch::nn::Linear(3, 4));
    second = register_module("second", torch::nn::Linear(4, 4));
    scale = register_parameter("scale", at::ones({4}) * 0.5);
    unused = register_parameter("unused", at::ones({2}));
    batches = register_buffer("batches", at::zeros({}));
  }
  Tensor forward(const Tensor& input) {
    batches += 1;
    if (!is_training()) return first(input);
    return second((first(input) * scale).tanh());
  }
  torch::nn::Linear first{nullptr}, second{nullptr};
  Tensor scale, unused, batches;
};
TORCH_MODULE(Net);

Devices cpus(size_t count) { return Devices(count, at::kCPU); }

TEST(DataParallel, GivesTheOutputsAndGradientsOfOneDevice) {
  for (const size_t devices : {1, 2, 3, 7}) {
    Net net;
    net->to(at::kDouble);
    const Tensor input = at::randn({7, 3}, at::kDouble).set_requires_grad(true);
    const Tensor expected = net(input);
    expected.pow(2).sum().backward();
    const Tensor input_grad = input.grad().clone();
    std::vector<Tensor> grads;
    for (const Tensor& parameter : net->parameters()) grads.push_back(parameter.grad());

    net->zero_grad();
    input.mutable_grad() = Tensor();
    const Tensor output = data_parallel(net, input, cpus(devices));
    EXPECT_TRUE(at::allclose(output, expected, 0, 1e-12));
    output.pow(2).sum().backward();
    EXPECT_TRUE(at::allclose(input.grad(), input_grad, 0, 1e-12));
    for (size_t i = 0; i < grads.size(); ++i) {
      const Tensor grad = net->parameters()[i].grad();
      ASSERT_EQ(grad.defined(), grads[i].defined()) << net->named_parameters().keys()[i];
      if (grad.defined()) {
        EXPECT_TRUE(at::allclose(grad, grads[i], 0, 1e-12));
      }
    }
  }
}

TEST(DataParallel, TrainsItsModuleAsTheModuleAlone) {
  torch::manual_seed(3);
  Net alone;
  const auto copy = std::dynamic_pointer_cast<NetImpl>(alone->clone());
  DataParallel<NetImpl> parallel(copy, cpus(2));
  torch::optim::SGD alone_optimizer(alone->parameters(), 0.1);
  torch::optim::SGD optimizer(parallel.parameters(), 0.1);
  for (int step = 0; step < 5; ++step) {
    const Tensor input = at::randn({5, 3});
    alone_optimizer.zero_grad();
    optimizer.zero_grad();
    alone(input).pow(2).mean().backward();
    parallel.forward(input).pow(2).mean().backward();
    alone_optimizer.step();
    optimizer.step();
  }
  for (const auto& item : alone->named_parameters()) {
    EXPECT_TRUE(at::allclose(parallel.named_parameters()["module." + item.key()], item.value()));
  }
  EXPECT_EQ(parallel.module()->batches.item<int64_t>(), 5) << "buffers of the first part stay";
}

TEST(DataParallel, UsesNoMoreDevicesThanRows) {
  Net net;
  EXPECT_EQ(data_parallel(net, at::ones({2, 3}), cpus(5)).size(0), 2);
  EXPECT_EQ(data_parallel(net, at::ones({5, 3}), cpus(4)).size(0), 5);
  EXPECT_EQ(data_parallel(net, at::ones({0, 3}), cpus(4)).size(0), 0);
}

TEST(DataParallel, PartsForWhichThereIsNoThreadRunOneAfterAnother) {
  Net net;
  const Tensor input = at::randn({7, 3});
  const Tensor expected = net(input);
  const ThreadLimit none(0);
  EXPECT_TRUE(at::allclose(data_parallel(net, input, cpus(3)), expected));
  EXPECT_EQ(none.refused(), 2);
}

TEST(DataParallel, CutsAndJoinsAlongTheDimensionAskedFor) {
  torch::nn::Linear linear(3, 2);
  const Tensor input = at::randn({2, 5, 3});
  EXPECT_TRUE(at::allclose(data_parallel(linear, input, cpus(2), std::nullopt, 1), linear(input)));
  EXPECT_TRUE(at::allclose(data_parallel(linear, input, cpus(2), std::nullopt, -2), linear(input)));
}

struct SumImpl : torch::nn::Cloneable<SumImpl> {
  void reset() override {}
  Tensor forward(const Tensor& input) { return input.sum(); }
};

TEST(DataParallel, JoinsScalarsToAVector) {
  const Tensor sums = data_parallel(std::make_shared<SumImpl>(), at::ones({5, 3}), cpus(2));
  EXPECT_TRUE(sums.equal(at::tensor({9.f, 6.f})));
}

TEST(DataParallel, KeepsGradModeTrainingModeAndFrozenParameters) {
  Net net;
  net->scale.set_requires_grad(false);
  data_parallel(net, at::ones({4, 3}), cpus(2)).sum().backward();
  EXPECT_FALSE(net->scale.grad().defined());
  EXPECT_TRUE(net->first->weight.grad().defined());
  {
    const torch::NoGradGuard no_grad;
    EXPECT_FALSE(data_parallel(net, at::ones({4, 3}), cpus(2)).requires_grad());
  }
  net->eval();
  const Tensor input = at::randn({4, 3});
  EXPECT_TRUE(at::allclose(data_parallel(net, input, cpus(2)), net->first(input)));
}

struct GradModeImpl : torch::nn::Cloneable<GradModeImpl> {
  void reset() override {}
  Tensor forward(const Tensor& input) {
    return at::full_like(input, at::GradMode::is_enabled() ? 1 : 0);
  }
};

TEST(DataParallel, RunsEveryPartInTheCallersGradMode) {
  const auto module = std::make_shared<GradModeImpl>();
  const torch::NoGradGuard no_grad;
  EXPECT_TRUE(data_parallel(module, at::ones({3}), cpus(3)).equal(at::zeros({3})));
}

TEST(DataParallel, DrawsNoRandomNumbersForItsReplicas) {
  Net net;
  torch::manual_seed(5);
  const Tensor expected = at::rand({3});
  torch::manual_seed(5);
  data_parallel(net, at::ones({4, 3}), cpus(3));
  EXPECT_TRUE(at::rand({3}).equal(expected));
}

struct PickyImpl : torch::nn::Cloneable<PickyImpl> {
  void reset() override {}
  Tensor forward(const Tensor& input) {
    TORCH_CHECK_VALUE(input.max().item<float>() < 3, "too large");
    return input;
  }
};

TEST(DataParallel, PassesOnWhatAPartThrows) {
  const auto picky = std::make_shared<PickyImpl>();
  EXPECT_THAT(value_error_of([&] { data_parallel(picky, at::arange(4.), cpus(2)); }),
              HasSubstr("too large"));
}

TEST(DataParallel, RefusesWhatCannotBe) {
  Net net;
  const Tensor input = at::ones({4, 3});
  EXPECT_THAT(value_error_of([&] { data_parallel(net, input, {}); }), HasSubstr("no devices"));
  EXPECT_THAT(value_error_of([&] {
                data_parallel(net, input, {at::kCPU, Device("cuda:0")});
              }),
              HasSubstr("several types: cpu and cuda:0"));
  EXPECT_THAT(value_error_of([&] {
                data_parallel(net, input, {Device("cuda:1"), Device("cuda:0")});
              }),
              HasSubstr("the first device, cuda:1, but 'scale' is on cpu"));
  EXPECT_THAT(value_error_of([&] { data_parallel(net, input, cpus(2), std::nullopt, 2); }),
              HasSubstr("shape [4, 3] along dimension 2"));
  EXPECT_THAT(value_error_of([&] { data_parallel(net, at::ones({}), cpus(2)); }),
              HasSubstr("along dimension 0"));
  EXPECT_THAT(value_error_of([&] { data_parallel(net, Tensor(), cpus(2)); }),
              HasSubstr("undefined"));
}

}  // namespace
}  // namespace weft::testing
