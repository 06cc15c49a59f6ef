// Every kind of optimizer, with all its options, over two owners.
//
// The weights must be those that LibTorch computes in one process.
#include <cmath>
#include <functional>
#include <memory>
#include <ostream>
#include <string>
#include <utility>
#include <vector>

#include <ATen/TensorOperators.h>
#include <ATen/ops/arange.h>
#include <ATen/ops/embedding.h>
#include <ATen/ops/linear.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <torch/nn/utils/clip_grad.h>
#include <torch/optim/adagrad.h>
#include <torch/optim/adam.h>
#include <torch/optim/adamw.h>
#include <torch/optim/rmsprop.h>
#include <torch/optim/sgd.h>

#include "weft/tests/dist_optim/optimizer_world.h"
#include "weft/tests/support/error_of.h"

namespace optimizer_kinds_test {

using ::testing::HasSubstr;
using torch::optim::Adagrad;
using torch::optim::AdagradOptions;
using torch::optim::Adam;
using torch::optim::AdamOptions;
using torch::optim::AdamW;
using torch::optim::AdamWOptions;
using torch::optim::RMSprop;
using torch::optim::RMSpropOptions;
using torch::optim::SGD;
using torch::optim::SGDOptions;
using weft::Destination;
using weft::DistributedOptimizer;
using weft::DistributedOptimizerBase;
using weft::HostedModule;
using weft::ParameterGroup;
using weft::ParameterSet;
using weft::RRef;
using weft::settings_of;
using weft::StepOptions;
using weft::StepResult;
using weft::TensorMap;
using weft::dist_autograd::Context;
using weft::testing::error_of;
using weft::testing::RuntimeWorld;

constexpr double kTolerance = 1e-12;
constexpr int64_t kSteps = 6;
constexpr int64_t kRowsWithoutBias = 3;

// Its values depend on `seed` only. The loss of some batches does not reach the bias.
class Unit : public torch::nn::Module {
 public:
  Unit(int64_t in, int64_t out, int64_t seed) {
    weight = register_parameter(
        "weight", at::arange(in * out, at::kDouble).reshape({out, in}).add(seed).sin());
    bias = register_parameter("bias", at::arange(out, at::kDouble).add(seed).cos());
  }
  at::Tensor forward(at::Tensor x) {
    const at::Tensor product = at::linear(x, weight);
    return (x.size(0) == kRowsWithoutBias ? product : product.add(bias)).tanh();
  }

  at::Tensor weight, bias;
};
WEFT_REGISTER_MODULE(Unit, int64_t, int64_t, int64_t);

// The gradient of its table is sparse.
class Table : public torch::nn::Module {
 public:
  Table() {
    table = register_parameter("table", at::arange(15, at::kDouble).reshape({5, 3}).sin());
  }
  at::Tensor forward(at::Tensor words) {
    return at::embedding(table, words, /*padding_idx=*/-1, /*scale_grad_by_freq=*/false,
                         /*sparse=*/true);
  }

  at::Tensor table;
};
WEFT_REGISTER_MODULE(Table);

at::Tensor batch(int64_t number) {
  const int64_t rows = number % 3 == 1 ? kRowsWithoutBias : 4;
  return at::arange(rows * 3, at::kDouble).add(7 * number).reshape({rows, 3}).cos();
}
// More words than the table has rows, so some come twice.
at::Tensor words(int64_t number) { return at::arange(8, at::kLong).mul(number + 3).remainder(5); }
// Makes gradients shrink from step to step, so that amsgrad's maximum is not its newest value.
double pull(int64_t number) { return 4 * std::pow(0.4, static_cast<double>(number)); }

double distance(const at::Tensor& a, const at::Tensor& b) {
  return (a.detach() - b.detach()).abs().max().item<double>();
}

// Two modules on two owners, driven by worker 0, and the same two in one process.
struct Pair {
  explicit Pair(const RuntimeWorld& world, int64_t seed = 1)
      : first(Destination(world.id(1)), 3, 5, seed),
        second(Destination(world.id(2)), 5, 2, seed + 1),
        alone_first(3, 5, seed),
        alone_second(5, 2, seed + 1) {}

  at::Tensor loss(int64_t number, double scale) const {
    return second.forward(first.forward(batch(number))).square().sum().mul(scale);
  }
  void backward_alone(int64_t number, double scale) {
    alone_first.zero_grad();
    alone_second.zero_grad();
    alone_second.forward(alone_first.forward(batch(number))).square().sum().mul(scale).backward();
  }
  std::vector<RRef<ParameterSet>> sets() const { return {first.parameters(), second.parameters()}; }
  std::vector<at::Tensor> parameters_alone() const {
    return {alone_first.weight, alone_first.bias, alone_second.weight, alone_second.bias};
  }
  std::vector<at::Tensor> parameters() const {
    const TensorMap one = first.state(), two = second.state();
    return {one.at("weight"), one.at("bias"), two.at("weight"), two.at("bias")};
  }
  // The distance of the owners' parameters from those in one process. It is a sum, so a NaN shows.
  double error() const {
    const std::vector<at::Tensor> here = parameters_alone(), there = parameters();
    double sum = 0;
    for (size_t i = 0; i < here.size(); ++i) sum += distance(here[i], there[i]);
    return sum;
  }

  HostedModule<Unit> first, second;
  Unit alone_first, alone_second;
};

StepResult step(const Pair& pair, DistributedOptimizerBase& optimizer, int64_t number,
                StepOptions options = {}) {
  Context context;
  context.backward({pair.loss(number, pull(number))});
  return optimizer.step(context, options);
}

struct Kind {
  std::string name;
  std::function<std::shared_ptr<DistributedOptimizerBase>(std::vector<RRef<ParameterSet>>)> over;
  std::function<std::unique_ptr<torch::optim::Optimizer>(std::vector<at::Tensor>)> alone;
};
void PrintTo(const Kind& kind, std::ostream* out) { *out << kind.name; }

template <class Opt>
Kind kind_of(std::string name, const typename DistributedOptimizer<Opt>::Options& options) {
  return {std::move(name),
          [options](std::vector<RRef<ParameterSet>> sets) {
            return std::make_shared<DistributedOptimizer<Opt>>(std::move(sets), options);
          },
          [options](std::vector<at::Tensor> parameters) {
            return std::make_unique<Opt>(std::move(parameters), options);
          }};
}

class OptimizerKinds : public ::testing::Test {
 protected:
  RuntimeWorld world_{weft::testing::with_autograd(3)};
  weft::CallScopeGuard guard_{world_.scope(0)};
};

class EveryKind : public OptimizerKinds, public ::testing::WithParamInterface<Kind> {};
INSTANTIATE_TEST_SUITE_P(
    Kinds, EveryKind,
    ::testing::Values(
        kind_of<SGD>("Sgd", SGDOptions(0.1)),
        kind_of<SGD>("SgdMomentumDampening",
                     SGDOptions(0.1).momentum(0.9).dampening(0.3).weight_decay(0.1)),
        kind_of<SGD>("SgdNesterov", SGDOptions(0.1).momentum(0.8).weight_decay(0.1).nesterov(true)),
        kind_of<Adam>("Adam", AdamOptions(0.1).betas({0.8, 0.95}).eps(1e-3).weight_decay(0.1)),
        kind_of<Adam>("AdamAmsgrad", AdamOptions(0.1).betas({0.8, 0.9}).amsgrad(true)),
        kind_of<AdamW>("AdamW", AdamWOptions(0.1).betas({0.8, 0.95}).eps(1e-3).weight_decay(0.2)),
        kind_of<AdamW>("AdamWAmsgrad", AdamWOptions(0.1).betas({0.8, 0.9}).amsgrad(true)),
        kind_of<Adagrad>(
            "Adagrad",
            AdagradOptions(0.1).lr_decay(0.1).weight_decay(0.1).initial_accumulator_value(0.2).eps(
                1e-3)),
        kind_of<RMSprop>("Rmsprop", RMSpropOptions(0.1).alpha(0.8).eps(1e-3).weight_decay(0.1)),
        kind_of<RMSprop>("RmspropCentered", RMSpropOptions(0.05).centered(true)),
        kind_of<RMSprop>("RmspropMomentum", RMSpropOptions(0.05).momentum(0.8)),
        kind_of<RMSprop>("RmspropCenteredMomentum",
                         RMSpropOptions(0.05).alpha(0.9).centered(true).momentum(0.8))),
    [](const auto& info) { return info.param.name; });

TEST_P(EveryKind, OverTwoOwnersEqualsOneProcess) {
  Pair pair(world_);
  const auto optimizer = GetParam().over(pair.sets());
  const auto alone = GetParam().alone(pair.parameters_alone());
  for (int64_t n = 0; n < kSteps; ++n) {
    step(pair, *optimizer, n);
    pair.backward_alone(n, pull(n));
    alone->step();
    ASSERT_LT(pair.error(), kTolerance) << "step " << n;
  }
}

TEST_P(EveryKind, AFreshOneWithTheStateGoesOnToTheSameWeights) {
  constexpr int64_t kSaved = kSteps / 2;
  const Pair pair(world_);
  const auto optimizer = GetParam().over(pair.sets());
  optimizer->set_schedule(weft::exponential_lr(0.7));
  for (int64_t n = 0; n < kSaved; ++n) step(pair, *optimizer, n);
  const TensorMap state = optimizer->state_dict();
  const TensorMap first = pair.first.state(), second = pair.second.state();
  for (int64_t n = kSaved; n < kSteps; ++n) step(pair, *optimizer, n);

  const Pair again(world_, 5);
  again.first.load_state(first);
  again.second.load_state(second);
  const auto fresh = GetParam().over(again.sets());
  fresh->set_schedule(weft::exponential_lr(0.7));
  fresh->load_state_dict(state);
  EXPECT_EQ(fresh->finished_steps(), kSaved);
  for (int64_t n = kSaved; n < kSteps; ++n) step(again, *fresh, n);
  const std::vector<at::Tensor> expected = pair.parameters(), found = again.parameters();
  for (size_t i = 0; i < expected.size(); ++i) {
    EXPECT_LT(distance(found[i], expected[i]), kTolerance) << "parameter " << i;
  }
}

// The weights of both owners are one group. Each owner's bias is a group of its own.
struct Grouped {
  explicit Grouped(const RuntimeWorld& world)
      : pair(world), optimizer(groups(pair)), alone(groups_alone(pair), SGDOptions(1.0)) {}

  static std::vector<SGDOptions> options() {
    return {SGDOptions(0.05).momentum(0.9), SGDOptions(0.2), SGDOptions(0.01).weight_decay(0.5)};
  }
  static std::vector<ParameterGroup> groups(const Pair& pair) {
    std::vector<ParameterGroup> groups(3);
    groups[0].sets = pair.sets();
    groups[0].names = {"weight"};
    groups[1].sets = {pair.first.parameters()};
    groups[1].names = {"bias"};
    groups[2].sets = {pair.second.parameters()};
    groups[2].names = {"bias"};
    for (size_t g = 0; g < groups.size(); ++g) groups[g].settings = settings_of(options()[g]);
    return groups;
  }
  static std::vector<torch::optim::OptimizerParamGroup> groups_alone(const Pair& pair) {
    const std::vector<std::vector<at::Tensor>> parameters = {
        {pair.alone_first.weight, pair.alone_second.weight},
        {pair.alone_first.bias},
        {pair.alone_second.bias}};
    std::vector<torch::optim::OptimizerParamGroup> groups;
    for (size_t g = 0; g < parameters.size(); ++g) {
      groups.emplace_back(parameters[g], std::make_unique<SGDOptions>(options()[g]));
    }
    return groups;
  }

  Pair pair;
  DistributedOptimizer<SGD> optimizer;
  SGD alone;
};

TEST_F(OptimizerKinds, GroupsOverBothOwnersHaveTheirOwnOptions) {
  Grouped grouped(world_);
  for (int64_t n = 0; n < kSteps; ++n) {
    step(grouped.pair, grouped.optimizer, n);
    grouped.pair.backward_alone(n, pull(n));
    grouped.alone.step();
    ASSERT_LT(grouped.pair.error(), kTolerance) << "step " << n;
  }
}

TEST_F(OptimizerKinds, ARateIsTheGroupsOwnTimesTheScheduleOrThatOfTheStep) {
  // The second step sets one rate for all groups. Before the third, group 1 gets the rate 0.6. The
  // schedule halves all rates after every second step.
  const std::vector<std::vector<double>> rates = {{0.05, 0.2, 0.01},      {0.3, 0.3, 0.3},
                                                  {0.025, 0.3, 0.005},    {0.025, 0.3, 0.005},
                                                  {0.0125, 0.15, 0.0025}, {0.0125, 0.15, 0.0025}};
  Grouped grouped(world_);
  grouped.optimizer.set_schedule(weft::step_lr(2, 0.5));
  for (size_t n = 0; n < rates.size(); ++n) {
    const auto number = static_cast<int64_t>(n);
    StepOptions options;
    if (n == 1) options.lr = 0.3;
    if (n == 2) grouped.optimizer.set_learning_rate(1, 0.6);
    step(grouped.pair, grouped.optimizer, number, options);
    for (size_t g = 0; g < rates[n].size(); ++g) {
      grouped.alone.param_groups()[g].options().set_lr(rates[n][g]);
    }
    grouped.pair.backward_alone(number, pull(number));
    grouped.alone.step();
    ASSERT_LT(grouped.pair.error(), kTolerance) << "step " << n;
  }
  EXPECT_EQ(grouped.optimizer.learning_rate(0), 0.05) << "without the schedule";
  EXPECT_EQ(grouped.optimizer.learning_rate(1), 0.6);
}

TEST_F(OptimizerKinds, TwoOptimizersShareTheParametersOfEachOwner) {
  Pair pair(world_);
  ParameterGroup weights, biases;
  weights.sets = biases.sets = pair.sets();
  weights.names = {"weight"};
  weights.settings = settings_of(AdamOptions(0.1));
  biases.names = {"bias"};
  biases.settings = settings_of(SGDOptions(0.1).momentum(0.9));
  DistributedOptimizer<Adam> of_weights(std::vector<ParameterGroup>(1, weights));
  DistributedOptimizer<SGD> of_biases(std::vector<ParameterGroup>(1, biases));
  Adam alone_weights(std::vector<at::Tensor>{pair.alone_first.weight, pair.alone_second.weight},
                     AdamOptions(0.1));
  SGD alone_biases(std::vector<at::Tensor>{pair.alone_first.bias, pair.alone_second.bias},
                   SGDOptions(0.1).momentum(0.9));
  for (int64_t n = 0; n < kSteps; ++n) {
    {
      Context context;
      context.backward({pair.loss(n, 1)});
      of_weights.step(context);
      of_biases.step(context);
    }
    pair.backward_alone(n, 1);
    alone_weights.step();
    alone_biases.step();
    ASSERT_LT(pair.error(), kTolerance) << "step " << n;
  }
}

TEST_F(OptimizerKinds, ClippingIsByTheNormOverBothOwnersAndOnlyAboveIt) {
  Pair pair(world_);
  pair.backward_alone(0, 1);
  const double max_norm = torch::nn::utils::clip_grad_norm_(pair.parameters_alone(), 1e9);
  const SGDOptions options = SGDOptions(0.01).momentum(0.9);
  DistributedOptimizer<SGD> optimizer(pair.sets(), options);
  SGD alone(pair.parameters_alone(), options);
  for (int64_t n = 0; n < kSteps; ++n) {
    const bool clipped = n % 2 == 0;
    const double scale = clipped ? 100 : 0.01;
    StepResult result;
    {
      Context context;
      context.backward({pair.loss(n, scale)});
      result = optimizer.step(context, {.max_norm = max_norm});
    }
    pair.backward_alone(n, scale);
    const double norm = torch::nn::utils::clip_grad_norm_(pair.parameters_alone(), max_norm);
    alone.step();
    EXPECT_NEAR(result.gradient_norm / norm, 1, kTolerance) << "step " << n;
    EXPECT_EQ(result.clip < 1, clipped) << "step " << n << ": " << result.clip;
    ASSERT_LT(pair.error(), kTolerance) << "step " << n;
  }
}

TEST_F(OptimizerKinds, OptionsThatAnOwnerRefusesAreAnErrorInLibTorchsWords) {
  const Pair pair(world_);
  for (const size_t owners : {size_t{1}, size_t{2}}) {
    const absl::Status refused = error_of([&] {
      std::vector<RRef<ParameterSet>> sets = pair.sets();
      sets.resize(owners);
      DistributedOptimizer<SGD> optimizer(std::move(sets), SGDOptions(0.1).momentum(-1));
      step(pair, optimizer, 0);
    });
    EXPECT_EQ(refused.code(), absl::StatusCode::kInvalidArgument) << refused;
    EXPECT_THAT(std::string(refused.message()), HasSubstr("Invalid momentum value"));
  }
  EXPECT_EQ(pair.error(), 0);
}

// A table on one owner and a unit on the other. The copy in one process has a dense gradient.
struct Reader {
  explicit Reader(const RuntimeWorld& world)
      : table(Destination(world.id(1))), unit(Destination(world.id(2)), 3, 2, 2) {}

  at::Tensor loss(int64_t number) const {
    return unit.forward(table.forward(words(number))).square().sum();
  }
  void backward_alone(int64_t number) {
    alone_table.zero_grad();
    alone_unit.zero_grad();
    const at::Tensor rows = at::embedding(alone_table.table, words(number));
    alone_unit.forward(rows).square().sum().backward();
  }
  std::vector<RRef<ParameterSet>> sets() const { return {table.parameters(), unit.parameters()}; }
  std::vector<at::Tensor> parameters_alone() const {
    return {alone_table.table, alone_unit.weight, alone_unit.bias};
  }
  double error() const {
    const TensorMap rest = unit.state();
    return distance(table.state().at("table"), alone_table.table) +
           distance(rest.at("weight"), alone_unit.weight) +
           distance(rest.at("bias"), alone_unit.bias);
  }

  HostedModule<Table> table;
  HostedModule<Unit> unit;
  Table alone_table;
  Unit alone_unit{3, 2, 2};
};

TEST_F(OptimizerKinds, SparseGradientsAreClippedAndSteppedAsDenseOnes) {
  for (const Kind& kind : {kind_of<SGD>("Sgd", SGDOptions(0.1).momentum(0.9)),
                           kind_of<Adagrad>("Adagrad", AdagradOptions(0.1))}) {
    Reader reader(world_);
    const auto optimizer = kind.over(reader.sets());
    const auto alone = kind.alone(reader.parameters_alone());
    for (int64_t n = 0; n < kSteps; ++n) {
      StepResult result;
      {
        Context context;
        context.backward({reader.loss(n)});
        result = optimizer->step(context, {.max_norm = 0.1});
      }
      reader.backward_alone(n);
      const double norm = torch::nn::utils::clip_grad_norm_(reader.parameters_alone(), 0.1);
      alone->step();
      EXPECT_NEAR(result.gradient_norm, norm, kTolerance) << kind.name << " step " << n;
      ASSERT_LT(reader.error(), kTolerance) << kind.name << " step " << n;
    }
  }
}

TEST_F(OptimizerKinds, SparseGradientsAreRefusedByParameterBeforeAnyOwnerApplies) {
  for (const Kind& kind :
       {kind_of<Adam>("Adam", AdamOptions(0.1)), kind_of<AdamW>("AdamW", AdamWOptions(0.1)),
        kind_of<RMSprop>("Rmsprop", RMSpropOptions(0.1)),
        kind_of<SGD>("SgdWeightDecay", SGDOptions(0.1).weight_decay(0.1)),
        kind_of<Adagrad>("AdagradWeightDecay", AdagradOptions(0.1).weight_decay(0.1))}) {
    const Reader reader(world_);
    const auto optimizer = kind.over(reader.sets());
    Context context;
    context.backward({reader.loss(0)});
    const StepResult result = optimizer->step_async(context).wait();
    EXPECT_EQ(result.outcome, StepResult::Outcome::kNotApplied) << kind.name;
    EXPECT_EQ(result.status.code(), absl::StatusCode::kInvalidArgument) << result.status;
    EXPECT_THAT(std::string(result.status.message()), HasSubstr("gradient of table is sparse"));
    EXPECT_EQ(reader.error(), 0) << kind.name;
  }
}

}  // namespace optimizer_kinds_test
