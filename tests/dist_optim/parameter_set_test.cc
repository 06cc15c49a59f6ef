#include "weft/dist_optim/parameter_set.h"

#include <ATen/TensorOperators.h>
#include <ATen/ops/allclose.h>
#include <ATen/ops/equal.h>
#include <ATen/ops/rand.h>
#include <ATen/ops/tensor.h>
#include <ATen/ops/zeros.h>
#include <gtest/gtest.h>
#include <torch/csrc/autograd/autograd.h>
#include <torch/csrc/autograd/generated/variable_factories.h>
#include <torch/nn/module.h>

namespace weft {
namespace {

at::Tensor leaf(std::vector<double> values) {
  return torch::tensor(values, at::kDouble).requires_grad_(true);
}
ContextId context(uint64_t number) { return {{0, 1}, number}; }
at::Tensor loss_of(const std::vector<at::Tensor>& w) {
  return (w[0] * w[0] * w[0]).sum() + w[1].sum();
}
at::Tensor gradient_of(const at::Tensor& loss, const at::Tensor& leaf) {
  return torch::autograd::grad({loss}, {leaf})[0];
}
std::unique_ptr<ParameterSet> two_parameters(
    ParameterSet::Reading reading = ParameterSet::Reading::kVersions) {
  return std::make_unique<ParameterSet>(
      std::vector<NamedParameter>{{"weight", leaf({1, 2, 3})}, {"bias", leaf({4})}}, reading);
}
// Does what an optimizer's step does: weight -= 1, with fresh storage at hand.
void step(ParameterSet& set) {
  std::vector<at::Tensor> spares = {at::zeros({3}, at::kDouble), at::zeros({1}, at::kDouble)};
  set.update({0, 1}, spares, [&] {
    at::Tensor weight = set.live()[0];
    weight.sub_(1);
    at::Tensor bias = set.live()[1];
    bias.sub_(1);
  });
}

TEST(ParameterSet, ForwardThenStepThenBackwardGivesTheGradientAtTheOldWeights) {
  const auto set = two_parameters();
  const std::vector<at::Tensor> old_weights = set->read(context(1));
  const at::Tensor loss = loss_of(old_weights);
  step(*set);
  const at::Tensor gradient = gradient_of(loss, old_weights[0]);

  at::Tensor alone = leaf({1, 2, 3});
  const at::Tensor truth = gradient_of((alone * alone * alone).sum(), alone);
  EXPECT_TRUE(at::equal(gradient, truth)) << gradient;
  EXPECT_TRUE(at::equal(set->read({})[0], torch::tensor({0., 1., 2.}, at::kDouble)));
}

// Shows why aliases exist: on the parameters themselves the same order of events is an error.
TEST(ParameterSet, ForwardThenStepThenBackwardFailsWithoutAliases) {
  const auto set = two_parameters(ParameterSet::Reading::kLeaves);
  const std::vector<at::Tensor> weights = set->read(context(1));
  EXPECT_TRUE(weights[0].is_same(set->live()[0]));
  const at::Tensor loss = loss_of(weights);
  step(*set);
  EXPECT_THROW(gradient_of(loss, weights[0]), std::exception);
}

TEST(ParameterSet, AContextReadsOneVersionFixedAtItsFirstRead) {
  const auto set = two_parameters();
  const at::Tensor first = set->read(context(1))[0];
  step(*set);
  EXPECT_TRUE(set->read(context(1))[0].is_same(first));
  EXPECT_TRUE(at::equal(first, torch::tensor({1., 2., 3.}, at::kDouble)));
  EXPECT_TRUE(at::equal(set->read(context(2))[0], torch::tensor({0., 1., 2.}, at::kDouble)));
  // Contexts have leaves of their own even of one version, so their gradients never mix.
  EXPECT_FALSE(set->read(context(3))[0].is_same(set->read(context(2))[0]));
}

TEST(ParameterSet, LiveVersionsAreAtMostLiveContextsPlusOne) {
  const auto set = two_parameters();
  for (uint64_t i = 1; i <= 5; ++i) {
    set->read(context(i));
    step(*set);
    EXPECT_EQ(set->live_versions(), i + 1);
  }
  for (uint64_t i = 1; i <= 5; ++i) set->release(context(i));
  EXPECT_EQ(set->live_versions(), 1u);
  EXPECT_EQ(set->live_contexts(), 0u);
}

TEST(ParameterSet, AStepWithoutReadersWritesInPlaceAndLeavesTheSpares) {
  const auto set = two_parameters();
  const void* storage = set->live()[0].data_ptr();
  std::vector<at::Tensor> spares = {at::zeros({3}, at::kDouble)};
  set->update({0}, spares, [] {});
  EXPECT_EQ(set->live()[0].data_ptr(), storage);
  EXPECT_TRUE(spares[0].defined());

  set->read(context(1));
  set->update({0}, spares, [] {});
  EXPECT_NE(set->live()[0].data_ptr(), storage);
  EXPECT_FALSE(spares[0].defined());
}

TEST(ParameterSet, AReaderOutsideAnyContextIsNotTornByAStep) {
  const auto set = two_parameters();
  const at::Tensor value = set->read({})[0];
  EXPECT_FALSE(value.requires_grad());
  step(*set);
  EXPECT_TRUE(at::equal(value, torch::tensor({1., 2., 3.}, at::kDouble)));
}

TEST(ParameterSet, HogwildReadsTheLiveStorage) {
  const auto set = two_parameters();
  ASSERT_TRUE(set->fix_mode(UpdateMode::kHogwild).ok());
  const at::Tensor value = set->read(context(1))[0];
  EXPECT_EQ(value.data_ptr(), set->live()[0].data_ptr());
  step(*set);
  EXPECT_TRUE(at::equal(value.detach(), torch::tensor({0., 1., 2.}, at::kDouble)));
}

TEST(ParameterSet, TheFirstOptimizerFixesTheMode) {
  const auto set = two_parameters();
  EXPECT_TRUE(set->fix_mode(UpdateMode::kLocked).ok());
  EXPECT_TRUE(set->fix_mode(UpdateMode::kLocked).ok());
  EXPECT_EQ(set->fix_mode(UpdateMode::kHogwild).code(), absl::StatusCode::kFailedPrecondition);
}

TEST(ParameterSet, BoundLeavesBecomeTheContextsLeaves) {
  const auto set = two_parameters();
  const std::vector<at::Tensor> replica = {leaf({9, 9, 9}), leaf({9})};
  const std::vector<at::Tensor> bound = set->bind(context(1), replica);
  EXPECT_TRUE(bound[0].is_same(replica[0]));
  EXPECT_TRUE(at::equal(replica[0].detach(), torch::tensor({1., 2., 3.}, at::kDouble)));
  const at::Tensor loss = loss_of(bound);
  step(*set);
  EXPECT_TRUE(at::equal(gradient_of(loss, replica[0]), torch::tensor({3., 12., 27.}, at::kDouble)));
  // A second replica of the same context does not replace the first.
  EXPECT_TRUE(set->bind(context(1), {leaf({0, 0, 0}), leaf({0})})[0].is_same(replica[0]));
}

TEST(ParameterSet, LoadReplacesEverythingOrNothing) {
  const auto set = two_parameters();
  const at::Tensor seen = set->read(context(1))[0];
  const TensorMap saved = set->state();
  step(*set);
  EXPECT_EQ(set->load_state({{"weight", saved.at("weight")}}).code(),
            absl::StatusCode::kInvalidArgument);
  EXPECT_EQ(
      set->load_state({{"weight", at::zeros({2}, at::kDouble)}, {"bias", saved.at("bias")}}).code(),
      absl::StatusCode::kInvalidArgument);
  EXPECT_TRUE(at::equal(set->read({})[1], torch::tensor({3.}, at::kDouble)));
  ASSERT_TRUE(set->load_state(saved).ok());
  EXPECT_TRUE(at::equal(set->read({})[1], torch::tensor({4.}, at::kDouble)));
  EXPECT_TRUE(at::equal(seen.detach(), torch::tensor({1., 2., 3.}, at::kDouble)));
}

TEST(ParameterSet, RefusesTwoParametersOfOneNameAndNonLeaves) {
  const NamedParameter one{"w", leaf({1})}, two{"w", leaf({2})}, product{"w", leaf({1}) * 2};
  EXPECT_THROW(ParameterSet(std::vector<NamedParameter>{one, two}), std::invalid_argument);
  EXPECT_THROW(ParameterSet(std::vector<NamedParameter>{product}), std::invalid_argument);
}

TEST(ParameterSet, OfAModuleHasItsLeavesByNameAndASharedOneOnce) {
  struct Layers : torch::nn::Module {
    Layers() {
      weight = register_parameter("weight", leaf({1}));
      register_parameter("again", weight);
      inner = register_module("inner", std::make_shared<torch::nn::Module>());
      inner->register_parameter("bias", leaf({2}));
    }
    at::Tensor weight;
    std::shared_ptr<torch::nn::Module> inner;
  };
  const Layers layers;
  const auto set = ParameterSet::of(layers);
  EXPECT_EQ(set->names(), (std::vector<std::string>{"weight", "inner.bias"}));
  EXPECT_TRUE(set->read(context(1))[0].is_same(layers.weight));
}

}  // namespace
}  // namespace weft
