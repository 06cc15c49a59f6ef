// A module on another worker behaves like a local copy of it: outputs, gradients, modes, states.
#include "weft/dist_optim/hosted_module.h"

#include <atomic>
#include <functional>
#include <ostream>
#include <stdexcept>
#include <string>
#include <tuple>
#include <vector>

#include <ATen/Context.h>
#include <ATen/TensorOperators.h>
#include <ATen/ops/arange.h>
#include <ATen/ops/equal.h>
#include <ATen/ops/ones.h>
#include <ATen/ops/randn.h>
#include <ATen/ops/zeros.h>
#include <c10/core/GradMode.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <torch/csrc/autograd/autograd.h>
#include <torch/nn/modules/batchnorm.h>

#include "absl/strings/str_cat.h"
#include "weft/tests/dist_optim/optimizer_world.h"
#include "weft/tests/support/error_of.h"

namespace hosted_module_test {

using ::testing::HasSubstr;
using torch::optim::SGD;
using torch::optim::SGDOptions;
using weft::DistributedOptimizer;
using weft::Future;
using weft::HostedModule;
using weft::ParameterSet;
using weft::RRef;
using weft::TensorMap;
using weft::dist_autograd::Context;
using weft::testing::error_of;
using weft::testing::RuntimeWorld;

// Two inputs and two outputs. Its values depend on `seed` only, so a copy in the test is the same
// module.
class Mixer : public torch::nn::Module {
 public:
  explicit Mixer(int64_t seed) {
    weight =
        register_parameter("weight", at::arange(6, at::kDouble).reshape({3, 2}).add(seed).sin());
    shift = register_parameter("shift", at::arange(2, at::kDouble).add(seed).cos());
  }
  std::tuple<at::Tensor, at::Tensor> forward(at::Tensor x, const at::Tensor& y) {
    const at::Tensor hidden = x.matmul(weight).add(shift).tanh();
    return {hidden.mul(y), hidden.square().sum()};
  }

  at::Tensor weight, shift;
};
WEFT_REGISTER_MODULE(Mixer, int64_t);

// Its output depends on the mode. In training it writes its buffers.
class Normed : public torch::nn::Module {
 public:
  explicit Normed(int64_t seed) : norm(register_module("norm", torch::nn::BatchNorm1d(kFeatures))) {
    c10::AutoGradMode no_grad(false);
    norm->weight.add_(at::arange(kFeatures).add(seed).sin());
    norm->bias.fill_(seed);
  }
  at::Tensor forward(at::Tensor x) { return norm->forward(x); }

  static constexpr int64_t kFeatures = 3;
  torch::nn::BatchNorm1d norm;
};
WEFT_REGISTER_MODULE(Normed, int64_t);

class Tied : public torch::nn::Module {
 public:
  Tied() {
    encoder = register_parameter("encoder", at::arange(6, at::kDouble).reshape({3, 2}).sin());
    decoder = register_parameter("decoder", encoder);
  }
  at::Tensor forward(at::Tensor x) { return x.matmul(encoder).tanh().matmul(decoder.t()); }

  at::Tensor encoder, decoder;
};
WEFT_REGISTER_MODULE(Tied);

class Picky : public torch::nn::Module {
 public:
  explicit Picky(int64_t width) {
    if (width < 0) throw std::invalid_argument(absl::StrCat("a width of ", width));
  }
  at::Tensor forward(at::Tensor x) { return x; }
};
WEFT_REGISTER_MODULE(Picky, int64_t);

// Each new instance has one parameter more than the last.
class Fickle : public torch::nn::Module {
 public:
  Fickle() {
    for (int i = made++; i >= 0; --i) {
      register_parameter(absl::StrCat("weight", i), at::zeros({1}));
    }
  }
  at::Tensor forward(at::Tensor x) { return x; }

 private:
  static inline std::atomic<int> made{0};
};
WEFT_REGISTER_MODULE(Fickle);

class Noisy : public torch::nn::Module {
 public:
  Noisy() { weight = register_parameter("weight", at::randn({2})); }
  at::Tensor forward(at::Tensor x) const { return x.mul(weight); }

  at::Tensor weight;
};
WEFT_REGISTER_MODULE(Noisy);

// Runs on the owner and returns the gradients of a module's parameters in the caller's context.
TensorMap gradients_of(RRef<ParameterSet> parameters) {
  const weft::ContextId context = weft::dist_autograd::current_context();
  const ParameterSet& set = parameters.local_value();
  const std::vector<at::Tensor> leaves = set.leaves(context);
  TensorMap gradients;
  for (size_t i = 0; i < leaves.size(); ++i) {
    const at::Tensor gradient = weft::dist_autograd::gradient(context, leaves[i]);
    if (gradient.defined()) gradients[set.names()[i]] = gradient;
  }
  return gradients;
}
WEFT_REGISTER_FUNCTION(gradients_of);

double distance(const at::Tensor& a, const at::Tensor& b) {
  return (a.detach() - b.detach()).abs().max().item<double>();
}
void expect_same(const TensorMap& a, const TensorMap& b) {
  ASSERT_EQ(a.size(), b.size());
  for (const auto& [name, value] : a) {
    ASSERT_TRUE(b.contains(name)) << name;
    ASSERT_EQ(value.scalar_type(), b.at(name).scalar_type()) << name;
    EXPECT_TRUE(at::equal(value, b.at(name))) << name;
  }
}

// Inputs of Mixer.
at::Tensor x_of(int64_t number) {
  return at::arange(12, at::kDouble).add(number).reshape({4, 3}).cos();
}
at::Tensor y_of(int64_t number) {
  return at::arange(8, at::kDouble).add(number).reshape({4, 2}).sin();
}
at::Tensor loss_of(const at::Tensor& first, const at::Tensor& second) {
  return first.sum() + second;
}
// Inputs of Normed. Each batch has another mean.
at::Tensor batch(int64_t number) {
  return at::arange(12, at::kFloat).reshape({4, 3}).sin().add(2 * (number + 1));
}

class HostedModuleTest : public ::testing::Test {
 protected:
  RuntimeWorld world_{weft::testing::with_autograd(3)};
  weft::CallScopeGuard guard_{world_.scope(0)};
};

TEST_F(HostedModuleTest, OutputsAreThoseOfALocalCopyAndForwardGivesTheFirst) {
  const HostedModule<Mixer> module(world_.id(1), 3);
  Mixer alone(3);
  const auto [first, second] = alone.forward(x_of(0), y_of(0));
  const std::vector<at::Tensor> outputs = module.forward_all(x_of(0), y_of(0));
  ASSERT_EQ(outputs.size(), 2u);
  EXPECT_LT(distance(outputs[0], first), 1e-12);
  EXPECT_LT(distance(outputs[1], second), 1e-12);
  EXPECT_LT(distance(module.forward(x_of(0), y_of(0)), first), 1e-12);
  EXPECT_LT(distance(module.forward_async(x_of(0), y_of(0)).wait(), first), 1e-12);
  EXPECT_FALSE(outputs[0].requires_grad()) << "recorded outside a context";
  EXPECT_EQ(module.owner(), world_.id(1));
}

TEST_F(HostedModuleTest, GradientsOfParametersAndInputsAreThoseOfALocalCopy) {
  const HostedModule<Mixer> module(world_.id(1), 3);
  Mixer alone(3);
  const at::Tensor x = x_of(0).requires_grad_(true), x_alone = x_of(0).requires_grad_(true);
  const auto [first, second] = alone.forward(x_alone, y_of(0));
  const auto truth =
      torch::autograd::grad({loss_of(first, second)}, {alone.weight, alone.shift, x_alone});

  Context context;
  const std::vector<at::Tensor> outputs = module.forward_all(x, y_of(0));
  context.backward({loss_of(outputs.at(0), outputs.at(1))});
  const TensorMap found = weft::rpc_sync(world_.id(1), gradients_of, module.parameters());
  EXPECT_LT(distance(found.at("weight"), truth[0]), 1e-12);
  EXPECT_LT(distance(found.at("shift"), truth[1]), 1e-12);
  EXPECT_LT(distance(context.gradient(x), truth[2]), 1e-12);
}

TEST_F(HostedModuleTest, ForwardsInFlightTogetherAddUpTheirGradients) {
  const HostedModule<Mixer> module(world_.id(1), 3);
  Mixer alone(3);
  const auto first_alone = [&](int64_t number) {
    return std::get<0>(alone.forward(x_of(number), y_of(number)));
  };
  const auto truth = torch::autograd::grad({first_alone(0).sum() + first_alone(1).sum()},
                                           {alone.weight, alone.shift});

  Context context;
  const Future<at::Tensor> one = module.forward_async(x_of(0), y_of(0));
  const Future<at::Tensor> two = module.forward_async(x_of(1), y_of(1));
  context.backward({one.wait().sum() + two.wait().sum()});
  const TensorMap found = weft::rpc_sync(world_.id(1), gradients_of, module.parameters());
  EXPECT_LT(distance(found.at("weight"), truth[0]), 1e-12);
  EXPECT_LT(distance(found.at("shift"), truth[1]), 1e-12);
}

TEST_F(HostedModuleTest, AnotherNumberOfInputsIsRefusedByThatNumber) {
  const HostedModule<Mixer> module(world_.id(1), 3);
  const std::string named = "forward takes 2 tensors and was given 1";
  EXPECT_THAT(std::string(error_of([&] { module.forward(x_of(0)); }).message()), HasSubstr(named));
  const absl::Status later = module.forward_async(x_of(0)).result().status();
  EXPECT_THAT(std::string(later.message()), HasSubstr(named));
  EXPECT_EQ(module.forward_all(x_of(0), y_of(0)).size(), 2u) << "the module is as good as before";
}

TEST_F(HostedModuleTest, TrainAndEvalHoldFromTheNextForwardOn) {
  const HostedModule<Normed> module(world_.id(1), 0);
  Normed alone(0);
  int64_t number = 0;
  const auto expect_as_alone = [&](const char* when) {
    const at::Tensor x = batch(number++);
    EXPECT_LT(distance(module.forward(x), alone.forward(x)), 1e-5) << when;
    const TensorMap state = module.state();
    EXPECT_LT(distance(state.at("norm.running_mean"), alone.norm->running_mean), 1e-5) << when;
    EXPECT_EQ(state.at("norm.num_batches_tracked").item<int64_t>(),
              alone.norm->num_batches_tracked.item<int64_t>())
        << when;
  };
  expect_as_alone("in training, as modules begin");
  module.eval();
  alone.eval();
  expect_as_alone("after eval()");
  module.train();
  alone.train();
  expect_as_alone("after train()");
  // A context uses one replica from its first forward on.
  Context context;
  expect_as_alone("in a context");
  module.eval();
  alone.eval();
  expect_as_alone("after eval() in the same context");
  module.train();
  alone.train();
  expect_as_alone("after train() in the same context");
}

TEST_F(HostedModuleTest, AStateLoadedIntoAnotherModuleMakesItTheSame) {
  const HostedModule<Normed> one(world_.id(1), 1), other(world_.id(2), 2);
  (void)one.forward(batch(0));
  const TensorMap state = one.state();
  EXPECT_EQ(state.size(), 5u) << "two parameters and three buffers";
  other.load_state(state);
  expect_same(other.state(), state);
  one.eval();
  other.eval();
  EXPECT_LT(distance(one.forward(batch(1)), other.forward(batch(1))), 1e-6);
}

TEST_F(HostedModuleTest, AStateSharesNoMemoryWithTheModule) {
  const HostedModule<Normed> module(world_.id(1), 1);
  const TensorMap state = module.state();
  TensorMap copy;
  for (const auto& [name, value] : state) copy[name] = value.clone();
  module.load_state(state);
  (void)module.forward(batch(0));  // writes the buffers
  {
    Context context;
    DistributedOptimizer<SGD> optimizer({module.parameters()}, SGDOptions(0.5));
    context.backward({module.forward(batch(1)).square().sum()});
    optimizer.step(context);
  }
  expect_same(state, copy);
  EXPECT_GT(distance(module.state().at("norm.weight"), copy.at("norm.weight")), 0.01);
}

TEST_F(HostedModuleTest, AForwardKeepsItsWeightsWhileAStateIsLoaded) {
  const HostedModule<Mixer> module(world_.id(1), 3);
  Mixer alone(3), other(4);
  const auto truth = torch::autograd::grad({std::get<1>(alone.forward(x_of(0), y_of(0)))},
                                           {alone.weight, alone.shift});
  {
    Context context;
    const at::Tensor loss = module.forward_all(x_of(0), y_of(0)).at(1);
    module.load_state({{"weight", other.weight.detach()}, {"shift", other.shift.detach()}});
    context.backward({loss});
    const TensorMap found = weft::rpc_sync(world_.id(1), gradients_of, module.parameters());
    EXPECT_LT(distance(found.at("weight"), truth[0]), 1e-12);
    EXPECT_LT(distance(found.at("shift"), truth[1]), 1e-12);
  }
  const at::Tensor expected = std::get<0>(other.forward(x_of(0), y_of(0)));
  EXPECT_LT(distance(module.forward(x_of(0), y_of(0)), expected), 1e-12);
}

TEST_F(HostedModuleTest, TiedParametersAreOneParameterSteppedOnce) {
  const HostedModule<Tied> module(world_.id(1));
  Tied alone;
  const TensorMap state = module.state();
  EXPECT_EQ(state.size(), 1u);
  EXPECT_TRUE(state.contains("encoder"));
  DistributedOptimizer<SGD> optimizer({module.parameters()}, SGDOptions(0.1).momentum(0.9));
  SGD alone_optimizer(std::vector<at::Tensor>{alone.encoder}, SGDOptions(0.1).momentum(0.9));
  for (int64_t i = 0; i < 3; ++i) {
    double norm = 0;
    {
      Context context;
      context.backward({module.forward(x_of(i)).square().sum()});
      norm = optimizer.step(context).gradient_norm;
    }
    alone_optimizer.zero_grad();
    alone.forward(x_of(i)).square().sum().backward();
    alone_optimizer.step();
    EXPECT_NEAR(norm, alone.encoder.grad().norm().item<double>(), 1e-10) << "step " << i;
    EXPECT_LT(distance(module.state().at("encoder"), alone.encoder), 1e-12) << "step " << i;
    EXPECT_LT(distance(module.forward(x_of(9)), alone.forward(x_of(9))), 1e-12) << "step " << i;
  }
}

TEST_F(HostedModuleTest, WhatItsConstructorThrewIsTheErrorOfEveryUse) {
  const HostedModule<Picky> module(world_.id(1), -3);
  const std::vector<std::function<void()>> uses = {
      [&] { module.forward(at::zeros({1})); },
      [&] { module.forward_async(at::zeros({1})).wait(); },
      [&] { module.eval(); },
      [&] { module.state(); },
      [&] { module.parameters().rpc_sync(&ParameterSet::state); },
  };
  for (size_t i = 0; i < uses.size(); ++i) {
    const absl::Status failed = error_of(uses[i]);
    EXPECT_EQ(failed.code(), absl::StatusCode::kUnknown) << "use " << i << ": " << failed;
    EXPECT_THAT(std::string(failed.message()), HasSubstr("a width of -3")) << "use " << i;
    EXPECT_EQ(weft::worker_of(failed), "w1") << "use " << i;
  }
  const HostedModule<Picky> sound(world_.id(1), 3);
  EXPECT_TRUE(at::equal(sound.forward(at::ones({1})), at::ones({1})));
}

TEST_F(HostedModuleTest, AConstructorThatMakesOtherParametersIsNoticedByTheForward) {
  const HostedModule<Fickle> module(world_.id(1));
  EXPECT_FALSE(module.state().empty());
  const absl::Status failed = error_of([&] { module.forward(at::zeros({1})); });
  EXPECT_EQ(failed.code(), absl::StatusCode::kFailedPrecondition) << failed;
  EXPECT_THAT(std::string(failed.message()), HasSubstr("other parameters or buffers than before"));
}

TEST_F(HostedModuleTest, AReplicaShiftsNobodysRandomNumbers) {
  const HostedModule<Noisy> module(world_.id(1));
  const at::Tensor weight = module.state().at("weight");
  at::manual_seed(5);
  const at::Tensor expected = at::randn({3});
  at::manual_seed(5);
  const at::Tensor output = module.forward(at::ones({2}));
  EXPECT_TRUE(at::equal(at::randn({3}), expected));
  EXPECT_TRUE(at::equal(output, weight)) << "the replica kept the values that it drew";
}

struct Fault {
  std::string name;
  std::function<void(TensorMap& state)> make;
  std::string named;
};
void PrintTo(const Fault& fault, std::ostream* out) { *out << fault.name; }

class UnfitState : public HostedModuleTest, public ::testing::WithParamInterface<Fault> {};
INSTANTIATE_TEST_SUITE_P(
    Faults, UnfitState,
    ::testing::Values(
        Fault{"MissingParameter", [](TensorMap& state) { state.erase("norm.bias"); }, "norm.bias"},
        Fault{"MissingBuffer", [](TensorMap& state) { state.erase("norm.running_var"); },
              "norm.running_var"},
        Fault{"UnexpectedEntry", [](TensorMap& state) { state["norm.colour"] = at::zeros({3}); },
              "norm.colour"},
        Fault{"MisshapenParameter", [](TensorMap& state) { state["norm.weight"] = at::zeros({4}); },
              "norm.weight"},
        Fault{"MisshapenBuffer",
              [](TensorMap& state) { state["norm.running_mean"] = at::zeros({4}); },
              "norm.running_mean"},
        Fault{"ParameterOfAnotherType",
              [](TensorMap& state) {
                state["norm.weight"] = at::zeros({Normed::kFeatures}, at::kDouble);
              },
              "norm.weight"}),
    [](const auto& info) { return info.param.name; });

TEST_P(UnfitState, IsRefusedByNameAndChangesNothing) {
  const HostedModule<Normed> module(world_.id(1), 1);
  (void)module.forward(batch(0));
  const TensorMap before = module.state();
  TensorMap state;
  for (const auto& [name, value] : before) state[name] = value.add(1);
  GetParam().make(state);
  const absl::Status refused = error_of([&] { module.load_state(state); });
  EXPECT_EQ(refused.code(), absl::StatusCode::kInvalidArgument) << refused;
  EXPECT_THAT(std::string(refused.message()), HasSubstr(GetParam().named));
  expect_same(module.state(), before);
}

}  // namespace hosted_module_test
