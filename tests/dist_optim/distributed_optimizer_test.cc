#include "weft/dist_optim/distributed_optimizer.h"

#include <cmath>

#include <ATen/ops/allclose.h>
#include <ATen/ops/equal.h>
#include <ATen/ops/full.h>
#include <ATen/ops/linear.h>
#include <ATen/ops/randn.h>
#include <ATen/ops/zeros.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <torch/csrc/autograd/autograd.h>
#include <torch/csrc/autograd/generated/variable_factories.h>
#include <torch/nn/utils/clip_grad.h>

#include "absl/strings/str_cat.h"
#include "weft/dist_optim/internal/shard_stepper.h"
#include "weft/tests/dist_optim/optimizer_world.h"
#include "weft/tests/support/error_of.h"

namespace weft::testing {

Layer::Layer(int64_t in, int64_t out, int64_t seed) {
  at::Generator generator = at::detail::createCPUGenerator(static_cast<uint64_t>(seed));
  weight = register_parameter("weight", at::randn({out, in}, generator));
  bias = register_parameter("bias", at::randn({out}, generator));
  calls = register_buffer("calls", at::zeros({}));
}
at::Tensor Layer::forward(at::Tensor x) {
  {
    c10::AutoGradMode no_grad(false);
    calls.add_(1);
  }
  return at::linear(x, weight, bias).tanh();
}

at::Tensor make_leaf(double value) {
  return torch::full({2}, value, at::kDouble).requires_grad_(true);
}
WEFT_REGISTER_FUNCTION(make_leaf);
at::Tensor times(RRef<at::Tensor> leaf, const at::Tensor& x) { return leaf.local_value() * x; }
WEFT_REGISTER_FUNCTION(times);
at::Tensor batch(int64_t number) {
  at::Generator generator = at::detail::createCPUGenerator(static_cast<uint64_t>(100 + number));
  return at::randn({4, 3}, generator);
}
// Runs a whole step of another trainer.
void train_once(const HostedModule<Layer>& module, int64_t number) {
  DistributedOptimizer<torch::optim::SGD> optimizer({module.parameters()},
                                                    torch::optim::SGDOptions(0.1));
  dist_autograd::Context context;
  context.backward({module.forward(batch(number)).sum()});
  optimizer.step(context);
}
WEFT_REGISTER_FUNCTION(train_once);
// Counts the optimizers whose steps the owner remembers under this name.
int64_t remembered(const RRef<ParameterSet>& set, const std::string& shared_name) {
  const auto stepper = std::static_pointer_cast<dist_optim_internal::ShardStepper>(
      set.local_value().shared(shared_name, [] { return std::shared_ptr<void>(); }));
  return static_cast<int64_t>(stepper->optimizers());
}
WEFT_REGISTER_FUNCTION(remembered);

namespace {

using dist_autograd::Context;
using ::testing::AllOf;
using ::testing::HasSubstr;
using torch::optim::SGD;
using torch::optim::SGDOptions;

bool close(const at::Tensor& a, const at::Tensor& b) {
  return at::allclose(a.detach(), b.detach(), 1e-6, 1e-7);
}

// Two layers on two owners, driven by worker 0, and the same two in one process.
struct Pair {
  explicit Pair(RuntimeWorld& world, size_t owner_of_first = 1)
      : first(Destination(world.id(owner_of_first)), 3, 5, 1),
        second(Destination(world.id(2)), 5, 2, 2) {}
  at::Tensor loss(const at::Tensor& x) const {
    return second.forward(first.forward(x)).square().sum();
  }
  at::Tensor loss_alone(const at::Tensor& x) {
    return alone_second.forward(alone_first.forward(x)).square().sum();
  }
  std::vector<at::Tensor> parameters_alone() {
    std::vector<at::Tensor> all = alone_first.parameters();
    for (const at::Tensor& p : alone_second.parameters()) all.push_back(p);
    return all;
  }
  void expect_equal(const std::string& when) {
    const TensorMap one = first.state(), two = second.state();
    EXPECT_TRUE(close(one.at("weight"), alone_first.weight)) << when;
    EXPECT_TRUE(close(one.at("bias"), alone_first.bias)) << when;
    EXPECT_TRUE(close(two.at("weight"), alone_second.weight)) << when;
    EXPECT_TRUE(close(two.at("bias"), alone_second.bias)) << when;
  }
  HostedModule<Layer> first, second;
  Layer alone_first{3, 5, 1}, alone_second{5, 2, 2};
};

class DistributedOptimizerTest : public ::testing::Test {
 protected:
  RuntimeWorld world_{with_autograd(3)};
  CallScopeGuard guard_{world_.scope(0)};
};

TEST_F(DistributedOptimizerTest, TrainingOverTwoOwnersEqualsOneProcess) {
  Pair pair(world_);
  DistributedOptimizer<SGD> optimizer({pair.first.parameters(), pair.second.parameters()},
                                      SGDOptions(0.1).momentum(0.9));
  SGD alone(pair.parameters_alone(), SGDOptions(0.1).momentum(0.9));
  for (int i = 0; i < 5; ++i) {
    {
      Context context;
      context.backward({pair.loss(batch(i))});
      EXPECT_EQ(optimizer.step(context).number, static_cast<uint64_t>(i + 1));
    }
    alone.zero_grad();
    pair.loss_alone(batch(i)).backward();
    alone.step();
    pair.expect_equal(absl::StrCat("step ", i));
  }
}

TEST_F(DistributedOptimizerTest, OwnersForgetTheOptimizersThatEndedUnderASharedName) {
  const Pair pair(world_);
  const std::vector<RRef<ParameterSet>> sets{pair.first.parameters(), pair.second.parameters()};
  const auto step = [&](DistributedOptimizer<SGD>& optimizer) {
    Context context;
    context.backward({pair.loss(batch(0))});
    return optimizer.step(context).number;
  };
  // Keeps the state alive that all these optimizers share.
  DistributedOptimizer<SGD> first(sets, SGDOptions(0.1), {.shared_name = "one"});
  EXPECT_EQ(step(first), 1u);
  for (uint64_t i = 2; i <= 10; ++i) {
    DistributedOptimizer<SGD> optimizer(sets, SGDOptions(0.1), {.shared_name = "one"});
    EXPECT_EQ(step(optimizer), i);
  }
  EXPECT_TRUE(eventually(
      [&] { return rpc_sync(world_.id(1), remembered, sets[0], std::string("one")) == 1; }));
}

TEST_F(DistributedOptimizerTest, ClippingByTheNormOverOwnersEqualsOneProcess) {
  Pair pair(world_);
  DistributedOptimizer<SGD> optimizer({pair.first.parameters(), pair.second.parameters()},
                                      SGDOptions(0.1));
  SGD alone(pair.parameters_alone(), SGDOptions(0.1));
  Context context;
  context.backward({pair.loss(batch(0))});
  const StepResult result = optimizer.step(context, {.max_norm = 0.5});
  pair.loss_alone(batch(0)).backward();
  const double norm = torch::nn::utils::clip_grad_norm_(pair.parameters_alone(), 0.5);
  alone.step();
  EXPECT_NEAR(result.gradient_norm, norm, 1e-5);
  EXPECT_LT(result.clip, 1.0);
  pair.expect_equal("clipped");
}

// The sum of two independent losses. The factors scale their gradients too.
struct TwoLosses {
  double first = 1, second = 1;
  at::Tensor operator()(auto& one, auto& other) const {
    return one.forward(batch(0)).sum() * first +
           other.forward(at::full({4, 5}, 0.1)).sum() * second;
  }
};

// If both owners are remote, they answer only PREPARE before the decision. If one is local, the
// remote one prepares and commits in one message.
TEST_F(DistributedOptimizerTest, AGradientThatIsNotFiniteRefusesTheClippedStepOnEveryOwnerByName) {
  for (const size_t owner_of_first : {1, 0}) {
    for (const double bad : {std::nan(""), HUGE_VAL}) {
      for (const TwoLosses& losses : {TwoLosses{.first = bad}, TwoLosses{.second = bad}}) {
        const size_t culprit = std::isfinite(losses.first) ? 2 : owner_of_first;
        SCOPED_TRACE(absl::StrCat(bad, " on w", culprit, ", the first on w", owner_of_first));
        Pair pair(world_, owner_of_first);
        DistributedOptimizer<SGD> optimizer({pair.first.parameters(), pair.second.parameters()},
                                            SGDOptions(0.1).momentum(0.9));
        SGD alone(pair.parameters_alone(), SGDOptions(0.1).momentum(0.9));
        {
          Context context;
          context.backward({losses(pair.first, pair.second)});
          const StepResult refused = optimizer.step_async(context, {.max_norm = 0.5}).wait();
          EXPECT_EQ(refused.outcome, StepResult::Outcome::kNotApplied);
          EXPECT_EQ(refused.status.code(), absl::StatusCode::kInvalidArgument);
          EXPECT_THAT(std::string(refused.status.message()),
                      AllOf(HasSubstr(absl::StrCat("w", culprit)),
                            HasSubstr("the gradient of weight cannot be clipped")));
        }
        losses(pair.alone_first, pair.alone_second).backward();
        EXPECT_THROW(torch::nn::utils::clip_grad_norm_(pair.parameters_alone(), 0.5, 2, true),
                     c10::Error);
        pair.expect_equal("refused");

        alone.zero_grad();
        Context context;
        context.backward({TwoLosses()(pair.first, pair.second)});
        EXPECT_LT(optimizer.step(context, {.max_norm = 0.5}).clip, 1);
        TwoLosses()(pair.alone_first, pair.alone_second).backward();
        torch::nn::utils::clip_grad_norm_(pair.parameters_alone(), 0.5, 2, true);
        alone.step();
        pair.expect_equal("the next one");
      }
    }
  }
}

TEST_F(DistributedOptimizerTest, WithoutClippingAGradientThatIsNotFiniteGoesWhereItWouldAlone) {
  Pair pair(world_);
  DistributedOptimizer<SGD> optimizer({pair.first.parameters(), pair.second.parameters()},
                                      SGDOptions(0.1));
  SGD alone(pair.parameters_alone(), SGDOptions(0.1));
  const TwoLosses losses{.second = std::nan("")};
  Context context;
  context.backward({losses(pair.first, pair.second)});
  EXPECT_TRUE(std::isnan(optimizer.step(context).gradient_norm));
  losses(pair.alone_first, pair.alone_second).backward();
  alone.step();
  const TensorMap one = pair.first.state(), two = pair.second.state();
  for (const auto& [name, value] : pair.alone_first.named_parameters().pairs()) {
    EXPECT_TRUE(close(one.at(name), value)) << name;
  }
  for (const auto& [name, value] : pair.alone_second.named_parameters().pairs()) {
    EXPECT_TRUE(value.isnan().all().item<bool>()) << name;
    EXPECT_TRUE(two.at(name).isnan().all().item<bool>()) << name;
  }
}

TEST_F(DistributedOptimizerTest, ForwardThenAnothersStepThenBackwardIsExact) {
  const HostedModule<Layer> module(Destination(world_.id(1)), 3, 5, 1);
  DistributedOptimizer<SGD> ours({module.parameters()}, SGDOptions(0.1));
  Layer old(3, 5, 1), alone(3, 5, 1);
  SGD alone_optimizer(alone.parameters(), SGDOptions(0.1));
  // A step of the other trainer, on worker 2, outside this thread's context.
  const auto other_step = [&, scope = world_.scope(0)] {
    CallScopeGuard outside(scope);
    rpc_sync(world_.id(2), train_once, module, 1);
  };
  {
    Context context;
    const at::Tensor loss = module.forward(batch(0)).square().sum();
    std::thread(other_step).join();
    context.backward({loss});
    ours.step(context);
  }
  alone.forward(batch(1)).sum().backward();
  alone_optimizer.step();
  alone_optimizer.zero_grad();
  old.forward(batch(0)).square().sum().backward();  // at the old weights
  alone.weight.mutable_grad() = old.weight.grad();
  alone.bias.mutable_grad() = old.bias.grad();
  alone_optimizer.step();
  const TensorMap state = module.state();
  EXPECT_TRUE(close(state.at("weight"), alone.weight));
  EXPECT_TRUE(close(state.at("bias"), alone.bias));
  EXPECT_EQ(state.at("calls").item<float>(), 2);
}

TEST_F(DistributedOptimizerTest, RemoteLeavesAreSteppedWhereTheyLive) {
  const RRef<at::Tensor> one = remote(world_.id(1), make_leaf, 1.0);
  const RRef<at::Tensor> two = remote(world_.id(2), make_leaf, 2.0);
  DistributedOptimizer<SGD> optimizer(std::vector<RRef<at::Tensor>>{one, two}, SGDOptions(0.5));
  const at::Tensor x = torch::tensor({1., 3.}, at::kDouble);
  Context context;
  const at::Tensor y =
      rpc_sync(world_.id(1), times, one, x) + rpc_sync(world_.id(2), times, two, x);
  context.backward({y.sum()});
  optimizer.step(context);
  EXPECT_TRUE(at::equal(one.to_here(), torch::tensor({0.5, -0.5}, at::kDouble)));
  EXPECT_TRUE(at::equal(two.to_here(), torch::tensor({1.5, 0.5}, at::kDouble)));
}

TEST_F(DistributedOptimizerTest, ScheduleAndRatesFollowTheFinishedSteps) {
  const HostedModule<Layer> module(Destination(world_.id(1)), 3, 1, 1);
  DistributedOptimizer<SGD> optimizer({module.parameters()}, SGDOptions(1.0));
  optimizer.set_schedule(step_lr(1, 0.5));
  at::Tensor before = module.state().at("bias");
  std::vector<double> moves;
  for (int i = 0; i < 2; ++i) {
    Context context;
    const at::Tensor out = module.forward(at::zeros({1, 3}));
    context.backward({out.sum()});
    optimizer.step(context);
    const at::Tensor after = module.state().at("bias");
    const double slope = 1 - out.item<double>() * out.item<double>();
    moves.push_back((before - after).item<double>() / slope);
    before = after;
  }
  EXPECT_NEAR(moves[0], 1.0, 1e-4);
  EXPECT_NEAR(moves[1], 0.5, 1e-4);
  EXPECT_EQ(optimizer.finished_steps(), 2);
}

TEST_F(DistributedOptimizerTest, ARefusedPrepareLeavesEveryOwnerUnchanged) {
  Pair pair(world_);
  DistributedOptimizer<SGD> optimizer({pair.first.parameters(), pair.second.parameters()},
                                      SGDOptions(0.1));
  {
    Context context;
    context.backward({pair.loss(batch(0))});
    world_.kill(2);
    const StepResult result = optimizer.step_async(context).wait();
    EXPECT_EQ(result.outcome, StepResult::Outcome::kNotApplied) << result.status;
  }
  EXPECT_TRUE(close(pair.first.state().at("weight"), pair.alone_first.weight));
  world_.allow_leftovers();
}

TEST_F(DistributedOptimizerTest, StateSavedAndLoadedContinuesAsIfNothingHappened) {
  const HostedModule<Layer> module(Destination(world_.id(1)), 3, 5, 1);
  const HostedModule<Layer> again(Destination(world_.id(2)), 3, 5, 1);
  using torch::optim::Adam;
  const torch::optim::AdamOptions options(0.1);
  DistributedOptimizer<Adam> first({module.parameters()}, options);
  const auto step = [&](const HostedModule<Layer>& m, DistributedOptimizer<Adam>& o, int i) {
    Context context;
    context.backward({m.forward(batch(i)).square().sum()});
    o.step(context);
  };
  step(module, first, 0);
  step(module, first, 1);
  again.load_state(module.state());
  DistributedOptimizer<Adam> second({again.parameters()}, options);
  second.load_state_dict(first.state_dict());
  step(module, first, 2);
  step(again, second, 2);
  EXPECT_TRUE(at::equal(module.state().at("weight"), again.state().at("weight")));
}

TEST_F(DistributedOptimizerTest, AStateThatOneOwnerRefusesIsLoadedByNone) {
  const HostedModule<Layer> a(Destination(world_.id(1)), 3, 5, 1);
  const HostedModule<Layer> b(Destination(world_.id(2)), 3, 5, 2);
  DistributedOptimizer<torch::optim::Adam> optimizer({a.parameters(), b.parameters()},
                                                     torch::optim::AdamOptions(0.1));
  const auto step = [&](int i) {
    Context context;
    context.backward({(a.forward(batch(i)).sum() + b.forward(batch(i)).square().sum())});
    optimizer.step(context);
  };
  step(0);
  weft::TensorMap state = optimizer.state_dict();
  step(1);
  const weft::TensorMap now = optimizer.state_dict();
  const auto refused = [&](const char* named) {
    const absl::Status status = weft::testing::error_of([&] { optimizer.load_state_dict(state); });
    EXPECT_EQ(status.code(), absl::StatusCode::kInvalidArgument) << status;
    EXPECT_NE(status.message().find(named), absl::string_view::npos) << status;
    const weft::TensorMap after = optimizer.state_dict();
    EXPECT_EQ(after.size(), now.size());
    for (const auto& [name, value] : now) EXPECT_TRUE(at::equal(after.at(name), value)) << name;
  };
  const at::Tensor average = state.at("1/bias/exp_avg");
  state["1/bias/exp_avg"] = at::zeros({2});
  refused("bias/exp_avg");
  state.erase("1/bias/exp_avg");
  refused("bias/exp_avg is missing");
  state["1/bias/exp_avg"] = average;
  state["1/bias/momentum_buffer"] = average;
  refused("bias/momentum_buffer");
  state.erase("1/bias/momentum_buffer");
  state["2/bias/exp_avg"] = average;
  refused("2/bias/exp_avg");
  state.erase("2/bias/exp_avg");
  state["steps"] = at::full({}, -1, at::kLong);
  refused("steps");
}

TEST_F(DistributedOptimizerTest, AnotherModeOnTheSameParametersIsRefused) {
  const HostedModule<Layer> module(Destination(world_.id(1)), 3, 5, 1);
  DistributedOptimizer<SGD> locked({module.parameters()}, SGDOptions(0.1));
  Context context;
  context.backward({module.forward(batch(0)).sum()});
  locked.step(context);
  // This comes after the first step, because owners may learn of optimizers in any order.
  DistributedOptimizer<SGD> hogwild({module.parameters()}, SGDOptions(0.1),
                                    {.mode = UpdateMode::kHogwild});
  const StepResult result = hogwild.step_async(context).wait();
  EXPECT_EQ(result.outcome, StepResult::Outcome::kNotApplied) << result.status;
}

TEST_F(DistributedOptimizerTest, HogwildStepsApplyInPlace) {
  const HostedModule<Layer> module(Destination(world_.id(1)), 3, 5, 1);
  DistributedOptimizer<SGD> optimizer({module.parameters()}, SGDOptions(0.1),
                                      {.mode = UpdateMode::kHogwild});
  Layer alone(3, 5, 1);
  SGD alone_optimizer(alone.parameters(), SGDOptions(0.1));
  Context context;
  context.backward({module.forward(batch(0)).sum()});
  optimizer.step(context);
  alone.forward(batch(0)).sum().backward();
  alone_optimizer.step();
  EXPECT_TRUE(close(module.state().at("weight"), alone.weight));
}

}  // namespace
}  // namespace weft::testing
