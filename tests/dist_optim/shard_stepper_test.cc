#include "weft/dist_optim/internal/shard_stepper.h"

#include <cmath>
#include <thread>

#include <ATen/ops/equal.h>
#include <ATen/ops/full.h>
#include <ATen/ops/ones.h>
#include <ATen/ops/randn.h>
#include <ATen/ops/zeros.h>
#include <c10/core/Allocator.h>
#include <c10/util/ThreadLocalDebugInfo.h>
#include <gtest/gtest.h>
#include <torch/csrc/autograd/generated/variable_factories.h>
#include <torch/optim/adagrad.h>
#include <torch/optim/adam.h>
#include <torch/optim/adamw.h>
#include <torch/optim/rmsprop.h>
#include <torch/optim/sgd.h>

namespace weft::dist_optim_internal {
namespace {

using torch::optim::AdagradOptions;
using torch::optim::AdamOptions;
using torch::optim::AdamWOptions;
using torch::optim::RMSpropOptions;
using torch::optim::SGDOptions;

std::vector<at::Tensor> start_values() {
  at::manual_seed(7);
  std::vector<at::Tensor> values;
  for (int i = 0; i < 3; ++i) values.push_back(torch::randn({5, 3 + i}).requires_grad_(true));
  return values;
}
std::shared_ptr<ParameterSet> start_set() {
  std::vector<NamedParameter> parameters;
  const char* names[] = {"a", "b", "c"};
  for (const at::Tensor& value : start_values()) {
    parameters.push_back({names[parameters.size()], value});
  }
  return std::make_shared<ParameterSet>(std::move(parameters));
}
// Gradients that both sides use. In every third step the second parameter has none.
std::vector<at::Tensor> gradients(uint64_t step) {
  at::manual_seed(1000 + step);
  std::vector<at::Tensor> result;
  for (int i = 0; i < 3; ++i) result.push_back(torch::randn({5, 3 + i}));
  if (step % 3 == 0) result[1].reset();
  return result;
}
StepId id(uint64_t number, uint64_t optimizer = 1) { return {{{0, 1}, optimizer}, number}; }

std::shared_ptr<ShardStepper> stepper_of(std::shared_ptr<ParameterSet> set,
                                         OptimizerSettings settings,
                                         UpdateMode mode = UpdateMode::kLocked) {
  auto stepper = ShardStepper::make(std::move(set), {{{0, 1, 2}, settings}}, mode);
  EXPECT_TRUE(stepper.ok()) << stepper.status();
  return *stepper;
}
void step(ShardStepper& stepper, uint64_t number, double lr, double clip = 1.0) {
  ASSERT_TRUE(stepper.prepare(id(number), gradients(number)).ok());
  ASSERT_TRUE(stepper.commit(id(number), {{lr}, clip}).ok());
}
// Returns the answer that another owner gets when it asks because the caller is dead.
StepOutcome fence(ShardStepper& stepper, const StepId& step) {
  ShardStepper::Asks asks;
  return stepper.inquire(step, {}, asks).outcome;
}
bool same(const ParameterSet& set, const std::vector<at::Tensor>& values) {
  for (size_t i = 0; i < values.size(); ++i) {
    if (!at::equal(set.live()[i].detach(), values[i].detach())) return false;
  }
  return true;
}

// Counts the tensors that LibTorch allocates on this thread. The smallest parameter has 60 bytes,
// and a number that becomes a tensor has 8, so sizes under 60 bytes do not count.
class Allocations {
 public:
  explicit Allocations(size_t& count)
      : guard_(c10::DebugInfoKind::PROFILER_STATE, std::make_shared<Counter>(count)) {}

 private:
  struct Counter final : c10::MemoryReportingInfoBase {
    explicit Counter(size_t& count) : count(count) {}
    void reportMemoryUsage(void*, int64_t size, size_t, size_t, c10::Device) override {
      if (size >= 60) ++count;
    }
    bool memoryProfilingEnabled() const override { return true; }
    size_t& count;
  };
  const c10::DebugInfoGuard guard_;
};

// Twenty steps must match bit for bit. Readers hold versions in every other step, the rate changes,
// and half-way the state is saved and loaded into a new stepper.
template <class Optimizer, class Options>
void expect_equal_to_torch(Options options) {
  std::vector<at::Tensor> truth = start_values();
  Optimizer torch_optimizer(truth, options);
  std::shared_ptr<ParameterSet> set = start_set();
  std::shared_ptr<ShardStepper> stepper = stepper_of(set, settings_of(options));
  for (uint64_t n = 1; n <= 20; ++n) {
    const double lr = 0.1 / static_cast<double>(n);
    const std::vector<at::Tensor> g = gradients(n);
    for (size_t i = 0; i < truth.size(); ++i) truth[i].mutable_grad() = g[i];
    torch_optimizer.param_groups()[0].options().set_lr(lr);
    torch_optimizer.step();

    const ContextId reader{{0, 1}, n};
    if (n % 2 == 0) set->read(reader);
    step(*stepper, n, lr);
    set->release(reader);
    ASSERT_TRUE(same(*set, truth)) << "step " << n;
    if (n == 10) {
      const TensorMap state = stepper->state();
      stepper = stepper_of(set, settings_of(options));
      ASSERT_TRUE(stepper->load_state(state).ok());
    }
  }
}

TEST(ShardStepper, SgdEqualsTorch) {
  expect_equal_to_torch<torch::optim::SGD>(SGDOptions(0.1));
  expect_equal_to_torch<torch::optim::SGD>(
      SGDOptions(0.1).momentum(0.9).dampening(0.3).weight_decay(0.01));
  expect_equal_to_torch<torch::optim::SGD>(SGDOptions(0.1).momentum(0.9).nesterov(true));
}
TEST(ShardStepper, AdamEqualsTorch) {
  expect_equal_to_torch<torch::optim::Adam>(AdamOptions(0.1));
  expect_equal_to_torch<torch::optim::Adam>(
      AdamOptions(0.1).betas({0.8, 0.99}).eps(1e-6).weight_decay(0.1).amsgrad(true));
}
TEST(ShardStepper, AdamWEqualsTorch) {
  expect_equal_to_torch<torch::optim::AdamW>(AdamWOptions(0.1));
  expect_equal_to_torch<torch::optim::AdamW>(AdamWOptions(0.1).weight_decay(0.2).amsgrad(true));
}
TEST(ShardStepper, AdagradEqualsTorch) {
  expect_equal_to_torch<torch::optim::Adagrad>(AdagradOptions(0.1));
  expect_equal_to_torch<torch::optim::Adagrad>(
      AdagradOptions(0.1).lr_decay(0.01).weight_decay(0.1).initial_accumulator_value(0.5));
}
TEST(ShardStepper, RmspropEqualsTorch) {
  expect_equal_to_torch<torch::optim::RMSprop>(RMSpropOptions(0.1));
  expect_equal_to_torch<torch::optim::RMSprop>(
      RMSpropOptions(0.1).momentum(0.9).centered(true).weight_decay(0.01).alpha(0.9));
}

TEST(ShardStepper, GroupsHaveTheirOwnOptionsAndRates) {
  std::vector<at::Tensor> truth = start_values();
  std::vector<torch::optim::OptimizerParamGroup> groups;
  groups.emplace_back(std::vector<at::Tensor>{truth[0], truth[2]},
                      std::make_unique<SGDOptions>(SGDOptions(0.5).momentum(0.9)));
  groups.emplace_back(std::vector<at::Tensor>{truth[1]},
                      std::make_unique<SGDOptions>(SGDOptions(0.25)));
  torch::optim::SGD torch_optimizer(groups, SGDOptions(0.5));
  std::shared_ptr<ParameterSet> set = start_set();
  auto stepper = *ShardStepper::make(
      set,
      {{{0, 2}, settings_of(SGDOptions(0.5).momentum(0.9))}, {{1}, settings_of(SGDOptions(0.25))}},
      UpdateMode::kLocked);
  for (uint64_t n = 1; n <= 4; ++n) {
    const std::vector<at::Tensor> g = gradients(n);
    for (size_t i = 0; i < truth.size(); ++i) truth[i].mutable_grad() = g[i];
    torch_optimizer.step();
    ASSERT_TRUE(stepper->prepare(id(n), g).ok());
    ASSERT_TRUE(stepper->commit(id(n), {{0.5, 0.25}, 1.0}).ok());
    ASSERT_TRUE(same(*set, truth)) << "step " << n;
  }
}

TEST(ShardStepper, PrepareChangesNothingAndCommitHappensOnce) {
  std::shared_ptr<ParameterSet> set = start_set();
  const auto stepper = stepper_of(set, settings_of(SGDOptions(0.1)));
  const absl::StatusOr<double> norm = stepper->prepare(id(1), gradients(1));
  ASSERT_TRUE(norm.ok());
  EXPECT_TRUE(same(*set, start_values()));
  EXPECT_EQ(*stepper->prepare(id(1), gradients(1)), *norm);
  EXPECT_EQ(stepper->outcome(id(1)), StepOutcome::kPrepared);
  EXPECT_EQ(stepper->undecided().size(), 1u);

  ASSERT_TRUE(stepper->commit(id(1), {{0.1}, 1.0}).ok());
  const at::Tensor once = set->live()[0].detach().clone();
  ASSERT_TRUE(stepper->commit(id(1), {{0.1}, 1.0}).ok());
  EXPECT_TRUE(at::equal(set->live()[0].detach(), once));
  EXPECT_EQ(*stepper->prepare(id(1), gradients(1)), *norm);
  EXPECT_EQ(stepper->outcome(id(1)), StepOutcome::kApplied);
  EXPECT_EQ(stepper->abort(id(1)).code(), absl::StatusCode::kFailedPrecondition);
}

TEST(ShardStepper, AnAbortedStepIsNeverApplied) {
  std::shared_ptr<ParameterSet> set = start_set();
  const auto stepper = stepper_of(set, settings_of(SGDOptions(0.1)));
  ASSERT_TRUE(stepper->prepare(id(1), gradients(1)).ok());
  ASSERT_TRUE(stepper->abort(id(1)).ok());
  ASSERT_TRUE(stepper->abort(id(1)).ok());
  EXPECT_EQ(stepper->commit(id(1), {{0.1}, 1.0}).code(), absl::StatusCode::kFailedPrecondition);
  EXPECT_EQ(stepper->prepare(id(1), gradients(1)).status().code(),
            absl::StatusCode::kFailedPrecondition);
  // An abort that arrives before its PREPARE.
  ASSERT_TRUE(stepper->abort(id(2)).ok());
  EXPECT_FALSE(stepper->prepare(id(2), gradients(2)).ok());
  EXPECT_TRUE(same(*set, start_values()));
  EXPECT_EQ(stepper->outcome(id(2)), StepOutcome::kAborted);
  EXPECT_TRUE(stepper->prepare(id(3), gradients(3)).ok());
}

TEST(ShardStepper, ANewerPrepareGivesUpTheOlderOne) {
  const auto stepper = stepper_of(start_set(), settings_of(SGDOptions(0.1)));
  ASSERT_TRUE(stepper->prepare(id(1), gradients(1)).ok());
  ASSERT_TRUE(stepper->prepare(id(2), gradients(2)).ok());
  EXPECT_EQ(stepper->outcome(id(1)), StepOutcome::kAborted);
  EXPECT_FALSE(stepper->commit(id(1), {{0.1}, 1.0}).ok());
  EXPECT_TRUE(stepper->commit(id(2), {{0.1}, 1.0}).ok());
}

TEST(ShardStepper, SettlingAQuestionRefusesTheDeadCallersCommit) {
  const auto stepper = stepper_of(start_set(), settings_of(SGDOptions(0.1)));
  ASSERT_TRUE(stepper->prepare(id(1), gradients(1)).ok());
  EXPECT_EQ(stepper->settle(id(1))->outcome, StepOutcome::kAborted);
  EXPECT_FALSE(stepper->commit(id(1), {{0.1}, 1.0}).ok());
  EXPECT_EQ(stepper->settle(id(2))->outcome, StepOutcome::kAborted)
      << "never heard of: refused from now on";
  EXPECT_FALSE(stepper->prepare(id(2), gradients(2)).ok());
  ASSERT_TRUE(stepper->prepare(id(3), gradients(3)).ok());
  ASSERT_TRUE(stepper->commit(id(3), {{0.1}, 1.0}).ok());
  EXPECT_EQ(stepper->settle(id(3))->outcome, StepOutcome::kApplied);
}

TEST(ShardStepper, AFencedStepIsDecidedByItsOwnersAlone) {
  std::shared_ptr<ParameterSet> set = start_set(), truth = start_set();
  const auto stepper = stepper_of(set, settings_of(SGDOptions(0.1)));
  const auto other = stepper_of(truth, settings_of(SGDOptions(0.1)));
  const WorkerId caller = id(1).optimizer.creator, asked{7, 1};
  stepper->meet(id(1).optimizer, {asked});
  ASSERT_TRUE(stepper->prepare(id(1), gradients(1), {0.1}).ok());
  EXPECT_EQ(fence(*stepper, id(1)), StepOutcome::kPrepared);
  EXPECT_EQ(stepper->commit(id(1), {{0.1}, 0.5}).code(), absl::StatusCode::kFailedPrecondition);
  EXPECT_EQ(stepper->undecided().size(), 1u);
  ShardStepper::Asks asks;
  stepper->on_worker_dead(id(1).optimizer, caller, asks);
  ASSERT_EQ(asks.size(), 1u);
  stepper->on_answer(id(1), 0, asks[0].round, {StepOutcome::kApplied, 0.5, 0}, asks);
  EXPECT_EQ(fence(*stepper, id(1)), StepOutcome::kApplied);
  EXPECT_EQ(stepper->applied(id(1))->update.clip, 0.5);
  ASSERT_TRUE(other->prepare(id(1), gradients(1)).ok());
  ASSERT_TRUE(other->commit(id(1), {{0.1}, 0.5}).ok());
  for (size_t i = 0; i < set->size(); ++i) {
    EXPECT_TRUE(at::equal(set->live()[i], truth->live()[i]));
  }

  EXPECT_EQ(fence(*stepper, id(2, 2)), StepOutcome::kAborted);  // it has never heard of this step
  EXPECT_FALSE(stepper->prepare(id(2, 2), gradients(2)).ok());
  ASSERT_TRUE(stepper->prepare(id(3, 2), gradients(3), {0.1}).ok());
  EXPECT_EQ(fence(*stepper, id(3, 2)), StepOutcome::kPrepared);
  ASSERT_TRUE(stepper->abort(id(3, 2)).ok());
  EXPECT_EQ(fence(*stepper, id(3, 2)), StepOutcome::kAborted);
}

TEST(ShardStepper, RefusesWhatDoesNotFitBeforeAnythingChanges) {
  std::shared_ptr<ParameterSet> set = start_set();
  const auto stepper = stepper_of(set, settings_of(SGDOptions(0.1)));
  std::vector<at::Tensor> wrong = gradients(1);
  wrong[2] = at::zeros({1});
  EXPECT_EQ(stepper->prepare(id(1), wrong).status().code(), absl::StatusCode::kInvalidArgument);
  EXPECT_EQ(stepper->prepare(id(1), {}).status().code(), absl::StatusCode::kInvalidArgument);
  EXPECT_TRUE(stepper->prepare(id(1), gradients(1)).ok());  // the number is still free
  EXPECT_EQ(stepper->commit(id(1), {{}, 1.0}).code(), absl::StatusCode::kInvalidArgument);
  EXPECT_TRUE(stepper->commit(id(1), {{0.1}, 1.0}).ok());
  EXPECT_EQ(stepper->prepare(id(9), gradients(9), {0.1, 0.2}).status().code(),
            absl::StatusCode::kInvalidArgument)
      << "two rates for one group";
  EXPECT_EQ(stepper->outcome(id(9)), StepOutcome::kUnknown);
}

TEST(ShardStepper, HalfPrecisionGradientsMayHaveANormThatIsNoHalf) {
  const at::Tensor value = at::zeros({4}, at::kHalf).requires_grad_(true);
  auto set = std::make_shared<ParameterSet>(std::vector<NamedParameter>{{"half", value}});
  auto stepper =
      ShardStepper::make(set, {{{0}, settings_of(SGDOptions(0.1))}}, UpdateMode::kLocked);
  ASSERT_TRUE(stepper.ok());
  const absl::StatusOr<double> norm =
      (*stepper)->prepare(id(1), {at::full({4}, 60000.0, at::kHalf)});
  ASSERT_TRUE(norm.ok());
  EXPECT_NEAR(std::sqrt(*norm), 120000, 100);
}

TEST(ShardStepper, SparseGradientsAreRefusedWhereACommitWouldThrow) {
  std::vector<at::Tensor> sparse = gradients(1);
  sparse[1] = sparse[1].to_sparse(1);
  for (const OptimizerSettings& settings :
       {settings_of(AdamOptions(0.1)), settings_of(RMSpropOptions(0.1)),
        settings_of(SGDOptions(0.1).weight_decay(0.1)),
        settings_of(AdagradOptions(0.1).weight_decay(0.1))}) {
    const absl::Status refused = stepper_of(start_set(), settings)->prepare(id(1), sparse).status();
    EXPECT_EQ(refused.code(), absl::StatusCode::kInvalidArgument);
    EXPECT_NE(refused.message().find("gradient of b is sparse"), absl::string_view::npos)
        << refused;
  }
  for (const OptimizerSettings& settings :
       {settings_of(SGDOptions(0.1).momentum(0.9)), settings_of(AdagradOptions(0.1))}) {
    std::shared_ptr<ParameterSet> dense_set = start_set(), sparse_set = start_set();
    const auto dense = stepper_of(dense_set, settings), stepper = stepper_of(sparse_set, settings);
    for (uint64_t n = 1; n <= 4; ++n) {
      step(*dense, n, 0.1, 0.5);
      std::vector<at::Tensor> g = gradients(n);
      if (g[1].defined()) g[1] = g[1].to_sparse(1);
      ASSERT_TRUE(stepper->prepare(id(n), g, {}, n % 2 == 0).ok());
      EXPECT_EQ(stepper->commit(id(n), {{0.1}, 0.5}), absl::OkStatus());
    }
    for (size_t i = 0; i < dense_set->size(); ++i) {
      EXPECT_TRUE(at::allclose(sparse_set->live()[i], dense_set->live()[i])) << i;
    }
  }
}

TEST(ShardStepper, SparseAndDenseGradientsMayFollowEachOther) {
  for (const bool nesterov : {false, true}) {
    const OptimizerSettings settings =
        settings_of(SGDOptions(0.1).momentum(0.9).nesterov(nesterov));
    std::shared_ptr<ParameterSet> dense_set = start_set(), mixed_set = start_set();
    const auto dense = stepper_of(dense_set, settings), mixed = stepper_of(mixed_set, settings);
    const bool sparse_first = !nesterov;
    for (uint64_t n = 1; n <= 6; ++n) {
      step(*dense, n, 0.1);
      std::vector<at::Tensor> g = gradients(n);
      if ((n % 2 == 1) == sparse_first) g[0] = g[0].to_sparse(1);
      ASSERT_TRUE(mixed->prepare(id(n), g).ok());
      ASSERT_EQ(mixed->commit(id(n), {{0.1}}), absl::OkStatus());
    }
    EXPECT_TRUE(at::allclose(mixed_set->live()[0], dense_set->live()[0]));
    EXPECT_EQ(mixed->load_state(mixed->state()), absl::OkStatus());
  }
}

TEST(ShardStepper, WhatACommitNeedsIsAllocatedWhenItIsPrepared) {
  const std::shared_ptr<ParameterSet> set = start_set();
  const auto stepper = stepper_of(set, settings_of(SGDOptions(0.1).momentum(0.9)));
  const std::vector<at::Tensor> g = gradients(1);
  for (uint64_t n = 1; n <= 3; ++n) {
    SCOPED_TRACE(n);
    set->read({{0, 1}, n});  // keeps the storage: the commit has to write elsewhere
    ASSERT_TRUE(stepper->prepare(id(n), g, {}, true).ok());
    if (n == 1) {
      EXPECT_TRUE(stepper->state().contains("a/momentum_buffer"));
    }
    size_t allocated = 0;
    {
      const Allocations counted(allocated);
      ASSERT_TRUE(stepper->commit(id(n), {{0.1}, 0.5}).ok());
    }
    EXPECT_EQ(allocated, 0u) << "a commit that needs memory can fail half-way";
    if (n == 1) {
      EXPECT_TRUE(at::equal(stepper->state().at("a/momentum_buffer"), g[0] * 0.5));
    }
  }
  EXPECT_TRUE(at::equal(g[0], gradients(1)[0])) << "the context's own gradient was clipped";
}

TEST(ShardStepper, AStateThatLacksAFieldIsRefusedByItsName) {
  const auto stepper = stepper_of(start_set(), settings_of(AdamOptions(0.1)));
  step(*stepper, 1, 0.1);
  TensorMap state = stepper->state();
  state.erase("b/exp_avg_sq");
  const absl::Status refused = stepper->load_state(state);
  EXPECT_EQ(refused.code(), absl::StatusCode::kInvalidArgument);
  EXPECT_NE(refused.message().find("b/exp_avg_sq is missing"), absl::string_view::npos) << refused;
  step(*stepper, 2, 0.1);
}

TEST(ShardStepper, BadOptionsAreRefusedWithTorchsWords) {
  const auto stepper = ShardStepper::make(
      start_set(), {{{0}, SgdSettings{.lr = 0.1, .momentum = -1}}}, UpdateMode::kLocked);
  EXPECT_EQ(stepper.status(),
            absl::InvalidArgumentError("the optimizer's options: Invalid momentum value: -1"))
      << "no more than these words: a stack of this process says nothing to its reader";
  EXPECT_FALSE(ShardStepper::make(start_set(),
                                  {{{0}, SgdSettings{.lr = 1}}, {{0}, SgdSettings{.lr = 1}}},
                                  UpdateMode::kLocked)
                   .ok());
}

TEST(ShardStepper, ACommitThatFailsHalfWayIsNeitherDoneNorUndone) {
  const std::shared_ptr<ParameterSet> set = start_set();
  const auto stepper = stepper_of(set, settings_of(SGDOptions(0.1)));
  ASSERT_TRUE(stepper->prepare(id(1), gradients(1)).ok());
  at::Tensor(set->live()[1]).set_data(at::zeros({2}));  // something that nobody may do
  const absl::Status failed = stepper->commit(id(1), {{0.1}});
  EXPECT_EQ(failed.code(), absl::StatusCode::kDataLoss) << failed;
  EXPECT_EQ(failed.message().find("Exception raised from"), absl::string_view::npos) << failed;
  EXPECT_EQ(stepper->commit(id(1), {{0.1}}), failed);
  EXPECT_EQ(stepper->settle(id(1)).status(), failed) << "it is not aborted";
  EXPECT_EQ(fence(*stepper, id(1)), StepOutcome::kApplied) << "the others must apply it";
  EXPECT_EQ(stepper->prepare(id(2), gradients(2)).status(), failed);
}

TEST(ShardStepper, InstancesThatShareAStepperHaveTheirOwnNumbers) {
  const auto stepper = stepper_of(start_set(), settings_of(AdamOptions(0.1)));
  ASSERT_TRUE(stepper->prepare(id(1, 1), gradients(1)).ok());
  ASSERT_TRUE(stepper->prepare(id(1, 2), gradients(2)).ok());
  EXPECT_TRUE(stepper->commit(id(1, 1), {{0.1}, 1.0}).ok());
  EXPECT_TRUE(stepper->commit(id(1, 2), {{0.1}, 1.0}).ok());
  EXPECT_EQ(stepper->state().at("a/step").item<int64_t>(), 2);
}

TEST(ShardStepper, EveryPreparedInstanceHasStorageForItsCommit) {
  std::shared_ptr<ParameterSet> set = start_set();
  std::shared_ptr<ShardStepper> stepper = stepper_of(set, settings_of(SGDOptions(0.1)));
  ASSERT_TRUE(stepper->prepare(id(1, 1), gradients(1)).ok());
  ASSERT_TRUE(stepper->prepare(id(1, 2), gradients(2)).ok());
  // There is a reader before each commit, so both commits need fresh storage.
  const std::vector<at::Tensor> before = set->read({{0, 1}, 1});
  EXPECT_EQ(stepper->commit(id(1, 1), {{0.1}}), absl::OkStatus());
  const std::vector<at::Tensor> between = set->read({{0, 1}, 2});
  EXPECT_EQ(stepper->commit(id(1, 2), {{0.1}}), absl::OkStatus());
  EXPECT_TRUE(at::equal(before[0].detach(), start_values()[0].detach()));
  EXPECT_FALSE(at::equal(between[0].detach(), set->live()[0].detach()));
}

TEST(ShardStepper, TheUsersOwnGradientIsLeftAlone) {
  const auto set = start_set();
  at::Tensor leaf = set->live()[0];
  leaf.mutable_grad() = at::ones_like(leaf);
  const auto stepper = stepper_of(set, settings_of(SGDOptions(0.1)));
  step(*stepper, 1, 0.1);
  EXPECT_TRUE(at::equal(leaf.grad(), at::ones_like(leaf)));
  EXPECT_FALSE(set->live()[2].grad().defined());
}

TEST(ShardStepper, ClipFactorScalesTheGradients) {
  std::shared_ptr<ParameterSet> set = start_set();
  const auto stepper = stepper_of(set, settings_of(SGDOptions(1.0)));
  step(*stepper, 1, 1.0, 0.5);
  const at::Tensor expected = start_values()[0].detach() - gradients(1)[0] * 0.5;
  EXPECT_TRUE(at::allclose(set->live()[0].detach(), expected));
}

TEST(ShardStepper, OldOutcomesAreForgottenNotInvented) {
  const auto stepper = stepper_of(start_set(), settings_of(SGDOptions(0.0)));
  for (uint64_t n = 1; n <= ShardStepper::kRemembered + 5; ++n) step(*stepper, n, 0.0);
  EXPECT_EQ(stepper->outcome(id(1)), StepOutcome::kForgotten);
  EXPECT_EQ(stepper->outcome(id(ShardStepper::kRemembered)), StepOutcome::kApplied);
}

// Two optimizers and several readers work on live storage at the same time. Every step must count
// once, values must stay finite, and memory valid, which the sanitizers check.
TEST(ShardStepper, HogwildAppliesEachStepOnceAmongConcurrentOnes) {
  std::shared_ptr<ParameterSet> set = start_set();
  const auto one = stepper_of(set, settings_of(AdamOptions(1e-3)), UpdateMode::kHogwild);
  const auto two = stepper_of(set, settings_of(AdamOptions(1e-3)), UpdateMode::kHogwild);
  constexpr uint64_t kSteps = 50;
  const auto run = [&](ShardStepper& stepper, uint64_t optimizer) {
    for (uint64_t n = 1; n <= kSteps; ++n) {
      std::vector<at::Tensor> g;
      for (const at::Tensor& live : set->live()) g.push_back(at::ones_like(live.detach()));
      EXPECT_TRUE(stepper.apply(id(n, optimizer), g, {{1e-3}, 1.0}).ok());
      EXPECT_TRUE(stepper.apply(id(n, optimizer), g, {{1e-3}, 1.0}).ok());  // repeated: once
    }
  };
  std::thread first([&] { run(*one, 1); });
  std::thread second([&] { run(*two, 2); });
  first.join();
  second.join();
  EXPECT_EQ(one->state().at("a/step").item<int64_t>(), static_cast<int64_t>(kSteps));
  EXPECT_EQ(two->state().at("c/step").item<int64_t>(), static_cast<int64_t>(kSteps));
  for (const at::Tensor& live : set->live())
    EXPECT_TRUE(live.detach().isfinite().all().item<bool>());
}

}  // namespace
}  // namespace weft::dist_optim_internal
