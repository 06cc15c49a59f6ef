// A step that is refused: the caller asks for nonsense, or an owner cannot take part in the step.
//
// The step changes nothing anywhere, or its error names the owners that it has changed.
#include <limits>
#include <memory>
#include <stdexcept>
#include <string>
#include <vector>

#include <ATen/TensorOperators.h>
#include <ATen/ops/equal.h>
#include <ATen/ops/full.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "absl/strings/str_cat.h"
#include "weft/tests/dist_optim/step_failures.h"

namespace step_failures_test {

using ::testing::AllOf;
using torch::optim::SGDOptions;
using weft::StepOptions;
using weft::UpdateMode;
using weft::dist_autograd::Context;
using weft::testing::RuntimeWorld;

constexpr double kNan = std::numeric_limits<double>::quiet_NaN();

void expect_same(const TensorMap& now, const TensorMap& before, const std::string& when) {
  EXPECT_EQ(now.size(), before.size()) << when;
  for (const auto& [name, value] : before) {
    EXPECT_TRUE(now.contains(name) && at::equal(now.at(name), value)) << name << ", " << when;
  }
}

class StepRefusedTest : public ::testing::Test {
 protected:
  void TearDown() override { seen.fill(nullptr); }
  std::vector<weft::WorkerId> owners() const { return {world_.id(1), world_.id(2)}; }

  RuntimeWorld world_{weft::testing::with_autograd(3)};
  weft::CallScopeGuard guard_{world_.scope(kCaller)};
};

TEST_F(StepRefusedTest, AThrowingScheduleTakesNoNumberAndTheNextStepWorks) {
  const Models models(owners());
  Sgd optimizer(models.sets, SGDOptions(kRate));
  Context context;
  context.backward({models.loss()});
  optimizer.set_schedule([](int64_t) -> double { throw std::runtime_error("no rate today"); });
  const StepResult refused = optimizer.step_async(context).wait();
  EXPECT_EQ(refused.outcome, Outcome::kNotApplied);
  EXPECT_EQ(weft::ran_of(refused.status), weft::Ran::kNo);
  EXPECT_THAT(text_of(refused), AllOf(HasSubstr("schedule"), HasSubstr("no rate today")));
  for (const size_t owner : {1, 2}) EXPECT_EQ(steps_applied(owner), 0) << owner;

  int64_t finished = -1;
  optimizer.set_schedule([&](int64_t steps) {
    finished = steps;
    return 1.0;
  });
  EXPECT_EQ(optimizer.step(context).number, 1u);
  EXPECT_EQ(finished, 0);
  for (const size_t owner : {1, 2}) EXPECT_EQ(steps_applied(owner), 1) << owner;
}

TEST_F(StepRefusedTest, NumbersThatMakeNoSenseAreRefusedByName) {
  for (const UpdateMode mode : {UpdateMode::kLocked, UpdateMode::kHogwild}) {
    SCOPED_TRACE(mode == UpdateMode::kLocked ? "locked" : "hogwild");
    const Models models(owners());
    Sgd optimizer(models.sets, SGDOptions(kRate), {.mode = mode});
    Context context;
    context.backward({models.loss()});
    const auto refused = [&](const StepOptions& options, const char* named) {
      expect_not_applied(optimizer.step_async(context, options).wait(),
                         absl::StatusCode::kInvalidArgument, named);
    };
    for (const double nonsense : {-1.0, kNan}) {
      refused({.max_norm = nonsense}, "max_norm");
      refused({.lr = nonsense}, "learning rate");
      optimizer.set_learning_rate(0, nonsense);
      refused({}, "learning rate");
      optimizer.set_learning_rate(0, kRate);
      optimizer.set_schedule([nonsense](int64_t) { return nonsense; });
      refused({}, "learning rate");
      optimizer.set_schedule(weft::constant_lr());
    }
    refused({.lr = std::numeric_limits<double>::infinity()}, "learning rate");
    for (const size_t owner : {1, 2}) EXPECT_EQ(steps_applied(owner), 0) << owner;
    EXPECT_EQ(optimizer.step(context).number, 1u);
    for (const size_t owner : {1, 2}) EXPECT_EQ(steps_applied(owner), 1) << owner;
  }
}

TEST_F(StepRefusedTest, HogwildRefusesToClip) {
  const Models models(owners());
  Sgd optimizer(models.sets, SGDOptions(kRate), {.mode = UpdateMode::kHogwild});
  Context context;
  context.backward({models.loss()});
  expect_not_applied(optimizer.step_async(context, {.max_norm = 1000}).wait(),
                     absl::StatusCode::kInvalidArgument, "max_norm");
  for (const size_t owner : {1, 2}) EXPECT_EQ(steps_applied(owner), 0) << owner;
  optimizer.step(context);
  for (const size_t owner : {1, 2}) EXPECT_EQ(steps_applied(owner), 1) << owner;
}

// There is one set, so the owner is not asked anything before the first step.
TEST_F(StepRefusedTest, AnOwnerThatRefusesTheOptionsSaysSoAtTheFirstStep) {
  const Models models({world_.id(1)});
  Sgd optimizer(models.sets, SGDOptions(kRate).momentum(-1));
  Context context;
  context.backward({models.loss()});
  expect_not_applied(optimizer.step_async(context).wait(), absl::StatusCode::kInvalidArgument,
                     "momentum");
  EXPECT_EQ(steps_applied(1), 0);
}

TEST_F(StepRefusedTest, GroupsUnlikeThoseOfTheSharedNameAreRefused) {
  const Models models({world_.id(1)});
  Sgd first(models.sets, SGDOptions(kRate), {.shared_name = kShared});
  (void)first.state_dict();  // returns when the shard exists
  const weft::OptimizerSettings settings = weft::settings_of(SGDOptions(kRate));
  const std::vector<weft::ParameterGroup> groups{
      {.sets = models.sets, .names = {"weight"}, .settings = settings},
      {.sets = models.sets, .names = {"bias"}, .settings = settings}};
  Sgd other(groups, weft::OptimizerOptions{.shared_name = kShared});
  EXPECT_THROW(other.set_learning_rate(2, kRate), std::out_of_range);
  Context context;
  context.backward({models.loss()});
  expect_not_applied(other.step_async(context).wait(), absl::StatusCode::kFailedPrecondition,
                     kShared);
  EXPECT_EQ(steps_applied(1), 0);
  first.step(context);
  EXPECT_EQ(steps_applied(1), 1);
}

TEST_F(StepRefusedTest, AGradientThatDoesNotFitIsRefusedOnEveryOwner) {
  const Models models(owners());
  Sgd optimizer(models.sets, SGDOptions(kRate), {.shared_name = kShared});
  Context context;
  context.backward({models.loss()});
  const auto replace_weight = [](const at::Tensor& value) {
    std::vector<at::Tensor> no_spares;
    seen[2]->update({}, no_spares, [&] { seen[2]->live()[0].set_data(value); });
  };
  const at::Tensor longer = at::full({3}, 0.1, at::kDouble);
  replace_weight(longer);
  expect_not_applied(optimizer.step_async(context).wait(), absl::StatusCode::kInvalidArgument,
                     "gradient of weight");
  EXPECT_EQ(steps_applied(1), 0);
  EXPECT_EQ(undecided(1), 0u);
  EXPECT_TRUE(at::equal(seen[2]->state().at("weight"), longer));
  EXPECT_TRUE(at::equal(seen[2]->state().at("bias"), start()));
  EXPECT_EQ(optimizer.finished_steps(), 0);

  replace_weight(start());
  optimizer.step(context);
  for (const size_t owner : {1, 2}) EXPECT_EQ(steps_applied(owner), 1) << owner;
}

// With momentum and weight decay, a gradient of zeros would change the parameters.
TEST_F(StepRefusedTest, AContextWithoutACommittedPassChangesNothing) {
  const Models models(owners());
  Sgd optimizer(models.sets, SGDOptions(kRate).momentum(0.9).weight_decay(0.1));
  const auto everything = [&] {
    TensorMap all = optimizer.state_dict();
    all.erase("steps");
    for (const size_t owner : {1, 2}) {
      for (const auto& [name, value] : seen[owner]->state()) {
        all[absl::StrCat("owner ", owner, "'s ", name)] = value;
      }
    }
    return all;
  };
  {
    Context context;
    context.backward({models.loss()});
    optimizer.step(context);
  }
  const TensorMap before = everything();
  ASSERT_TRUE(before.contains("1/weight/momentum_buffer"));
  const auto step_changes_nothing = [&](const Context& context, const char* when) {
    const StepResult result = optimizer.step_async(context).wait();
    EXPECT_NE(result.outcome, Outcome::kDataLoss) << when << ": " << result.status;
    expect_same(everything(), before, when);
  };
  {
    Context context;
    step_changes_nothing(context, "no forward");
  }
  {
    Context context;
    const at::Tensor loss = models.loss();
    step_changes_nothing(context, "no backward");
  }
  {
    Context context;
    const at::Tensor one = models.forward(0), two = models.forward(1);
    two.register_hook([](const at::Tensor&) -> at::Tensor { throw std::runtime_error("no"); });
    EXPECT_FALSE(context.backward_async({(one + two).sum()}).result().ok());
    step_changes_nothing(context, "a failed backward");
  }
}

TEST_F(StepRefusedTest, AnOwnerThatTheLossDoesNotReachKeepsItsValues) {
  const Models models(owners());
  Sgd optimizer(models.sets, SGDOptions(kRate).weight_decay(0.1));
  Context context;
  const at::Tensor reached = models.forward(0), not_reached = models.forward(1);
  context.backward({reached.sum()});
  optimizer.step(context);
  EXPECT_FALSE(at::equal(seen[1]->state().at("weight"), start()));
  EXPECT_EQ(steps_applied(2), 0);
}

TEST_F(StepRefusedTest, HogwildListsWhoAppliedAndWhoDidNot) {
  const Models models(owners());
  Sgd locked({models.sets[1]}, SGDOptions(kRate));
  (void)locked.state_dict();  // the shard exists now: owner 2 refuses the mode
  Sgd hogwild(models.sets, SGDOptions(kRate), {.mode = UpdateMode::kHogwild});
  Context context;
  context.backward({models.loss()});
  const StepResult result = hogwild.step_async(context).wait();
  EXPECT_EQ(result.outcome, Outcome::kDataLoss);
  EXPECT_EQ(result.status.code(), absl::StatusCode::kDataLoss);
  EXPECT_THAT(text_of(result), AllOf(HasSubstr("w1: applied; w2: not applied"),
                                     HasSubstr("updated in mode locked")));
  EXPECT_EQ(steps_applied(1), 1);
  EXPECT_EQ(steps_applied(2), 0);
}

TEST_F(StepRefusedTest, HogwildThatNobodyAppliedIsAborted) {
  const Models models(owners());
  Sgd locked(models.sets, SGDOptions(kRate));
  (void)locked.state_dict();
  Sgd hogwild(models.sets, SGDOptions(kRate), {.mode = UpdateMode::kHogwild});
  Context context;
  context.backward({models.loss()});
  const StepResult result = hogwild.step_async(context).wait();
  expect_not_applied(result, absl::StatusCode::kAborted, "w1: not applied");
  EXPECT_THAT(text_of(result), HasSubstr("w2: not applied"));
  for (const size_t owner : {1, 2}) EXPECT_EQ(steps_applied(owner), 0) << owner;
}

}  // namespace step_failures_test
