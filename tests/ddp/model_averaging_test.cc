#include "weft/ddp/model_averaging.h"

#include <map>
#include <memory>
#include <sstream>
#include <string>

#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <torch/optim/sgd.h>
#include <torch/serialize.h>

#include "weft/tests/comm/failure_of.h"
#include "weft/tests/support/group_world.h"

namespace weft::testing {
namespace {

using ::testing::ElementsAre;
using ::testing::HasSubstr;
using Tensors = std::vector<at::Tensor>;

// A parameter with a gradient.
at::Tensor parameter(const at::Tensor& value) {
  at::Tensor result = value.detach().clone().set_requires_grad(true);
  result.mutable_grad() = at::zeros_like(value);
  return result;
}

// In each step this rank's value begins as its rank. The result has the value after each step,
// which shows the ranks that were averaged.
std::vector<double> averages(ModelAverager& averager, int rank, int steps) {
  std::vector<double> result;
  for (int step = 0; step < steps; ++step) {
    const at::Tensor value = parameter(at::full({2}, rank, at::kDouble));
    averager.average_parameters({value});
    result.push_back(value[0].item<double>());
  }
  return result;
}

TEST(ModelAveraging, GivesEveryRankTheMeanInPlace) {
  run_ranks(3, [](std::shared_ptr<ProcessGroup> group) {
    const double rank = group->rank();
    const Tensors parameters = {
        parameter(at::full({2, 3}, rank)), parameter(at::full({4}, 10 * rank, at::kDouble)),
        parameter(at::arange(6.0).view({2, 3}).t() * rank), parameter(at::full({}, rank))};
    const void* const memory = parameters[0].data_ptr();
    average_parameters(parameters, *group);
    EXPECT_TRUE(parameters[0].equal(at::full({2, 3}, 1.f)));
    EXPECT_TRUE(at::allclose(parameters[1], at::full({4}, 10.0, at::kDouble), 0, 1e-12));
    EXPECT_TRUE(at::allclose(parameters[2], at::arange(6.0).view({2, 3}).t()));
    EXPECT_EQ(parameters[3].item<float>(), 1);
    EXPECT_EQ(parameters[0].data_ptr(), memory);
    EXPECT_TRUE(parameters[0].requires_grad());
  });
}

TEST(ModelAveraging, PeriodicAveragesEveryPeriodFromTheEndOfTheWarmUp) {
  run_ranks(2, [](std::shared_ptr<ProcessGroup> group) {
    PeriodicModelAverager averager(group, {.period = 3, .warmup_steps = 2});
    const double own = group->rank();
    EXPECT_THAT(averages(averager, group->rank(), 7),
                ElementsAre(own, own, 0.5, own, own, 0.5, own));
    EXPECT_EQ(averager.step(), 7);
    averager.set_step(5);
    EXPECT_THAT(averages(averager, group->rank(), 1), ElementsAre(0.5));
  });
}

TEST(ModelAveraging, LeavesParametersWithoutAGradient) {
  run_ranks(2, [](std::shared_ptr<ProcessGroup> group) {
    PeriodicModelAverager averager(group, {});
    const at::Tensor trained = parameter(at::full({1}, group->rank()).to(at::kFloat));
    const at::Tensor frozen = at::full({1}, group->rank()).to(at::kFloat);
    averager.average_parameters({frozen, trained});
    EXPECT_EQ(trained.item<float>(), 0.5);
    EXPECT_EQ(frozen.item<float>(), group->rank());
  });
}

TEST(ModelAveraging, HierarchicalTakesTheLargestPeriodThatDividesTheStep) {
  run_ranks(4, [](std::shared_ptr<ProcessGroup> group) {
    HierarchicalModelAverager averager(group, {.group_sizes = {{2, 2}, {4, 4}}, .warmup_steps = 1});
    const double own = group->rank();
    const double pair = own < 2 ? 0.5 : 2.5;
    EXPECT_THAT(averages(averager, group->rank(), 9),
                ElementsAre(own, own, pair, own, 1.5, own, pair, own, 1.5));
  });
}

TEST(ModelAveraging, RefusesWhatCannotBe) {
  EXPECT_THAT(value_error_of([] { PeriodicModelAverager(nullptr, {}); }), HasSubstr("null"));
  run_ranks(4, [](std::shared_ptr<ProcessGroup> group) {
    const auto periodic = [&](PeriodicAveragingOptions options) {
      return value_error_of([&] { PeriodicModelAverager(group, options); });
    };
    EXPECT_THAT(periodic({.period = 0}), HasSubstr("period is 0"));
    EXPECT_THAT(periodic({.period = 2, .warmup_steps = -1}), HasSubstr("warmup_steps is -1"));
    const auto levels = [&](std::map<int64_t, int> sizes) {
      return value_error_of([&] { HierarchicalModelAverager(group, {sizes}); });
    };
    EXPECT_THAT(levels({}), HasSubstr("empty"));
    EXPECT_THAT(levels({{0, 4}}), HasSubstr("period 0"));
    EXPECT_THAT(levels({{2, 3}, {4, 4}}), HasSubstr("period 2 has groups of 3 ranks"));
    EXPECT_THAT(levels({{2, 4}, {4, 2}}), HasSubstr("period 4 has groups of 2 ranks"));
    EXPECT_THAT(levels({{2, 2}}), HasSubstr("it must have all 4"));
    EXPECT_THAT(value_error_of([&] { average_parameters({at::ones({1}, at::kLong)}, *group); }),
                HasSubstr("Long"));
  });
}

TEST(PostLocalSgd, StepsAreLocalThenAveraged) {
  run_ranks(2, [](std::shared_ptr<ProcessGroup> group) {
    const at::Tensor weight = parameter(at::zeros({2}, at::kDouble));
    PostLocalSgdOptimizer optimizer(
        std::make_shared<torch::optim::SGD>(Tensors{weight}, torch::optim::SGDOptions(1)),
        std::make_shared<PeriodicModelAverager>(group, PeriodicAveragingOptions{.period = 2}));
    // Rank 0 goes down by 1 per step and rank 1 by 2. They are averaged after the first and third
    // step.
    const std::vector<double> expected = group->rank() == 0 ? std::vector<double>{-1.5, -2.5, -4.5}
                                                            : std::vector<double>{-1.5, -3.5, -4.5};
    for (const double value : expected) {
      optimizer.zero_grad();
      optimizer.step([&] {
        at::Tensor loss = (weight * (group->rank() + 1)).sum();
        loss.backward();
        return loss;
      });
      EXPECT_NEAR(weight[0].item<double>(), value, 1e-12);
    }
  });
}

TEST(PostLocalSgd, SavesTheAveragersStepWithTheOptimizersState) {
  run_ranks(2, [](std::shared_ptr<ProcessGroup> group) {
    const auto make = [&](const at::Tensor& weight, std::shared_ptr<ModelAverager> averager) {
      return PostLocalSgdOptimizer(std::make_shared<torch::optim::SGD>(
                                       Tensors{weight}, torch::optim::SGDOptions(1).momentum(0.5)),
                                   std::move(averager));
    };
    const auto averager = [&] {
      return std::make_shared<PeriodicModelAverager>(
          group, PeriodicAveragingOptions{.period = 3, .warmup_steps = 2});
    };
    const at::Tensor weight = parameter(at::full({2}, group->rank(), at::kDouble));
    PostLocalSgdOptimizer optimizer = make(weight, averager());
    weight.mutable_grad() = at::full({2}, group->rank() + 1.0, at::kDouble);
    for (int i = 0; i < 4; ++i) optimizer.step();
    std::stringstream stream;
    torch::serialize::OutputArchive archive;
    optimizer.save(archive);
    archive.save_to(stream);

    const at::Tensor other_weight = parameter(weight);
    const auto other_averager = averager();
    PostLocalSgdOptimizer other = make(other_weight, other_averager);
    torch::serialize::InputArchive loaded;
    loaded.load_from(stream);
    other.load(loaded);
    EXPECT_EQ(other_averager->step(), 4);
    other_weight.mutable_grad() = weight.grad().clone();
    for (int i = 0; i < 3; ++i) {
      optimizer.step();
      other.step();
      EXPECT_TRUE(other_weight.equal(weight)) << i;
    }
  });
}

}  // namespace
}  // namespace weft::testing
