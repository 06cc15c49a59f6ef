// A step that is cut off: an owner dies in the middle of it, or messages are lost and it does not
// hear of the step in time.
//
// The step's result must say what the owners did. Steps that are refused are in step_refused_test.
#include "weft/tests/dist_optim/step_failures.h"

#include <algorithm>
#include <atomic>
#include <chrono>
#include <cmath>
#include <memory>
#include <ostream>
#include <string>
#include <utility>
#include <vector>

#include <ATen/TensorOperators.h>
#include <ATen/ops/equal.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "weft/rpc/registry.h"
#include "weft/tests/support/error_of.h"
#include "weft/tests/support/worker_world.h"

namespace step_failures_test {

using ::testing::AllOf;
using torch::optim::SGDOptions;
using weft::FrameHeader;
using weft::FrameKind;
using weft::Future;
using weft::InprocNetwork;
using weft::UpdateMode;
using weft::dist_autograd::Context;
using weft::dist_optim_internal::OptimizerShard;
using weft::testing::error_of;
using weft::testing::eventually;
using weft::testing::WorkerWorld;

class StepCutOffTest : public ::testing::Test {
 protected:
  void TearDown() override { seen.fill(nullptr); }

  template <class M>
  uint64_t id_of(M method) {
    return (*world_[kCaller].runtime()->registry().find_callable(
                weft::rpc_internal::method_key<OptimizerShard>(method), "a shard's method"))
        ->id;
  }

  // Counts what `lose` has lost so far.
  struct Loss {
    std::atomic<size_t> lost{0};
    std::atomic<uint64_t> call{0};  // the call whose answer is to be lost
  };
  // Loses the caller's calls of these methods to these owners. If `answer` is true, it loses the
  // answer to the last of these calls instead.
  std::shared_ptr<Loss> lose(std::vector<uint64_t> methods, std::vector<uint32_t> owners,
                             bool answer) {
    auto loss = std::make_shared<Loss>();
    world_.network().set_filter([=](const FrameHeader& header) {
      const auto holds = [](const auto& all, auto one) {
        return std::find(all.begin(), all.end(), one) != all.end();
      };
      const bool asked = header.kind == FrameKind::kCall && header.source.index == kCaller &&
                         holds(owners, header.destination.index) && holds(methods, header.function);
      if (asked && answer) loss->call = header.call;
      const bool answered = header.kind == FrameKind::kReply &&
                            header.destination.index == kCaller &&
                            holds(owners, header.source.index) && header.call == loss->call;
      if (!(answer ? answered : asked)) return InprocNetwork::Fate::kDeliver;
      ++loss->lost;
      return InprocNetwork::Fate::kDrop;
    });
    return loss;
  }
  // Stops losing messages. The sessions send again what was lost between the caller and these
  // owners.
  void let_through(const std::vector<uint32_t>& owners) {
    world_.network().set_filter(nullptr);
    const std::vector<weft::WorkerInfo> all = world_[kCaller].workers();
    for (const uint32_t owner : owners) {
      world_.network().sever(all[kCaller].address, all[owner].address);
    }
  }

  WorkerWorld world_{3};
  weft::WorkerScope scope_{world_[kCaller]};
};

struct Death {
  std::string name;
  bool at_commit;     // else at PREPARE
  bool after_answer;  // else before the message arrives
};
void PrintTo(const Death& death, std::ostream* out) { *out << death.name; }

class OwnerDeathTest : public StepCutOffTest, public ::testing::WithParamInterface<Death> {};
INSTANTIATE_TEST_SUITE_P(Points, OwnerDeathTest,
                         ::testing::Values(Death{"BeforeItsPrepare", false, false},
                                           Death{"AfterItsPrepare", false, true},
                                           Death{"BeforeItsCommit", true, false},
                                           Death{"AfterItsCommit", true, true}),
                         [](const auto& info) { return info.param.name; });

TEST_P(OwnerDeathTest, TheSurvivorDidWhatTheStepSays) {
  const bool at_commit = GetParam().at_commit, after_answer = GetParam().after_answer;
  const int applied = at_commit ? 1 : 0;
  const Models models({world_[1].id(), world_[2].id()});
  Sgd optimizer(models.sets, SGDOptions(kRate), {.shared_name = kShared});
  {
    Context context;
    context.backward({models.loss()});
    const auto loss =
        lose({at_commit ? id_of(&OptimizerShard::commit) : id_of(&OptimizerShard::prepare)}, {2},
             after_answer);
    const Future<StepResult> step = optimizer.step_async(context);
    ASSERT_TRUE(eventually(
        [&] { return loss->lost > 0 && (at_commit ? steps_applied(1) == 1 : undecided(1) == 1); }));
    EXPECT_EQ(steps_applied(2), at_commit && after_answer ? 1 : 0);
    world_.kill(2);
    const StepResult result = step.wait();
    EXPECT_EQ(result.outcome, at_commit ? Outcome::kDataLoss : Outcome::kNotApplied);
    EXPECT_EQ(result.status.code(),
              at_commit ? absl::StatusCode::kDataLoss : absl::StatusCode::kUnavailable);
    EXPECT_THAT(text_of(result), HasSubstr("worker2"));
  }
  EXPECT_EQ(steps_applied(1), applied);
  EXPECT_EQ(undecided(1), 0u);
  EXPECT_EQ(optimizer.finished_steps(), applied);
  {  // The dead owner's parameters still belong to the optimizer.
    Context context;
    context.backward({models.forward(0).sum()});
    const absl::Status refused = error_of([&] { return optimizer.step(context); });
    EXPECT_EQ(refused.code(), absl::StatusCode::kUnavailable) << refused;
    EXPECT_THAT(std::string(refused.message()),
                AllOf(HasSubstr("step 2 was not applied"), HasSubstr("worker2")));
  }
  EXPECT_EQ(steps_applied(1), applied);
  EXPECT_EQ(undecided(1), 0u);
  Sgd alone({models.sets[0]}, SGDOptions(kRate), {.shared_name = kShared});
  Context context;
  context.backward({models.forward(0).sum()});
  alone.step(context);
  EXPECT_EQ(steps_applied(1), applied + 1);
}

// PREPARE and COMMIT are one message here. The dead owner's values died with it.
TEST_F(StepCutOffTest, TheOnlyRemoteOwnersDeathLeavesTheLocalValuesAsTheyWere) {
  const Models models({world_[kCaller].id(), world_[2].id()});
  Sgd optimizer(models.sets, SGDOptions(kRate), {.shared_name = kShared});
  Context context;
  context.backward({models.loss()});
  const auto loss = lose({id_of(&OptimizerShard::finish)}, {2}, true);
  const Future<StepResult> step = optimizer.step_async(context);
  ASSERT_TRUE(eventually([&] { return loss->lost > 0; }));
  EXPECT_EQ(steps_applied(2), 1);
  EXPECT_EQ(undecided(kCaller), 1u);
  world_.kill(2);
  expect_not_applied(step.wait(), absl::StatusCode::kUnavailable, "worker2");
  EXPECT_EQ(steps_applied(kCaller), 0);
  EXPECT_EQ(undecided(kCaller), 0u);
}

TEST_F(StepCutOffTest, ALostAnswerIsAskedForAndItsClipFactorUsedByAll) {
  const Models models({world_[kCaller].id(), world_[2].id()});
  Sgd optimizer(models.sets, SGDOptions(kRate));
  Context context;
  context.backward({models.loss()});
  // The step is part of a handler. The test cancels the handler once the answer is lost.
  weft::RpcRuntime& caller = *world_[kCaller].runtime();
  const auto handler =
      std::make_shared<weft::CallContext>(caller.clock(), caller.id(), caller.name(), weft::kNever);
  const auto loss = lose({id_of(&OptimizerShard::finish)}, {2}, true);
  Future<StepResult> step;
  {
    weft::CallScope scope = weft::CallScope::current();
    scope.call_context = handler;
    weft::CallScopeGuard guard(std::move(scope));
    step = optimizer.step_async(context, {.max_norm = 1});
  }
  ASSERT_TRUE(eventually([&] { return loss->lost > 0; }));
  handler->cancel();
  const StepResult result = step.wait();
  ASSERT_EQ(result.outcome, Outcome::kApplied) << result.status;
  EXPECT_NEAR(result.gradient_norm, std::sqrt(2 * (1 + 1) + 2 * (16 + 1)), 1e-12);
  EXPECT_NEAR(result.clip, 1 / result.gradient_norm, 1e-6);
  for (const size_t owner : {size_t{kCaller}, size_t{2}}) {
    const at::Tensor clipped = input(owner) * result.clip;
    EXPECT_TRUE(at::equal(seen[owner]->state().at("weight"), start() - clipped * kRate)) << owner;
  }
}

TEST_F(StepCutOffTest, AStepDuringAnotherIsRefusedAndHarmsNeither) {
  const Models models({world_[1].id(), world_[2].id()});
  Sgd optimizer(models.sets, SGDOptions(kRate), {.shared_name = kShared});
  Context context;
  context.backward({models.loss()});
  const auto loss = lose({id_of(&OptimizerShard::prepare)}, {2}, false);
  const Future<StepResult> first = optimizer.step_async(context);
  ASSERT_TRUE(eventually([&] { return loss->lost > 0 && undecided(1) == 1; }));
  const StepResult second = optimizer.step_async(context).wait();
  expect_not_applied(second, absl::StatusCode::kFailedPrecondition, "under way");
  EXPECT_EQ(weft::ran_of(second.status), weft::Ran::kNo);
  EXPECT_EQ(undecided(1), 1u);
  EXPECT_FALSE(first.done());

  let_through({2});
  EXPECT_EQ(first.wait().outcome, Outcome::kApplied) << first.wait().status;
  EXPECT_EQ(first.wait().number, 1u);
  for (const size_t owner : {1, 2}) EXPECT_EQ(steps_applied(owner), 1) << owner;
  EXPECT_EQ(optimizer.step(context).number, 2u);
  for (const size_t owner : {1, 2}) EXPECT_EQ(steps_applied(owner), 2) << owner;
}

TEST_F(StepCutOffTest, AStepThatTheOwnersHearOfTooLateIsNotApplied) {
  const Models models({world_[1].id(), world_[2].id()});
  Sgd optimizer(models.sets, SGDOptions(kRate), {.shared_name = kShared});
  Context context;
  context.backward({models.loss()});
  const auto loss = lose({id_of(&OptimizerShard::prepare)}, {1, 2}, false);
  const StepResult result =
      optimizer.step_async(context, {.timeout = std::chrono::seconds(2)}).wait();
  expect_not_applied(result, absl::StatusCode::kDeadlineExceeded, "worker1");
  EXPECT_EQ(loss->lost, 2u);
  // The PREPARE that was lost arrives now.
  let_through({1, 2});
  EXPECT_EQ(optimizer.step(context).number, 2u);
  for (const size_t owner : {1, 2}) {
    EXPECT_EQ(steps_applied(owner), 1) << owner;
    EXPECT_EQ(undecided(owner), 0u) << owner;
  }
}

TEST_F(StepCutOffTest, AnOnlyOwnerThatDoesNotSayInTimeIsDataLoss) {
  const Models models({world_[1].id()});
  Sgd optimizer(models.sets, SGDOptions(kRate));
  Context context;
  context.backward({models.loss()});
  const auto loss =
      lose({id_of(&OptimizerShard::finish), id_of(&OptimizerShard::settle)}, {1}, false);
  const StepResult result =
      optimizer.step_async(context, {.timeout = std::chrono::seconds(2)}).wait();
  EXPECT_EQ(result.outcome, Outcome::kDataLoss) << result.status;
  EXPECT_THAT(text_of(result), HasSubstr("worker1"));
  ASSERT_TRUE(eventually([&] { return loss->lost == 2; }));
  // The step is still in progress.
  expect_not_applied(optimizer.step_async(context).wait(), absl::StatusCode::kFailedPrecondition,
                     "under way");
  let_through({1});
  StepResult next;
  ASSERT_TRUE(eventually([&] {
    next = optimizer.step_async(context).wait();
    return next.outcome == Outcome::kApplied;
  })) << next.status;
  EXPECT_EQ(next.number, 2u);
}

// The caller has stopped waiting, but the step is still to be decided.
TEST_F(StepCutOffTest, AnAnswerThatComesAfterTheStepsTimeStillDecidesIt) {
  const Models models({world_[kCaller].id(), world_[2].id()});
  Sgd optimizer(models.sets, SGDOptions(kRate), {.shared_name = kShared});
  Context context;
  context.backward({models.loss()});
  weft::RpcRuntime& caller = *world_[kCaller].runtime();
  const auto handler =
      std::make_shared<weft::CallContext>(caller.clock(), caller.id(), caller.name(), weft::kNever);
  const auto loss =
      lose({id_of(&OptimizerShard::finish), id_of(&OptimizerShard::settle)}, {2}, true);
  Future<StepResult> step;
  {
    weft::CallScope scope = weft::CallScope::current();
    scope.call_context = handler;
    weft::CallScopeGuard guard(std::move(scope));
    step = optimizer.step_async(context, {.timeout = std::chrono::seconds(1)});
  }
  ASSERT_TRUE(eventually([&] { return loss->lost > 0; }));
  handler->cancel();
  const StepResult result = step.wait();
  EXPECT_EQ(result.outcome, Outcome::kDataLoss) << result.status;
  EXPECT_THAT(text_of(result), HasSubstr("worker2"));
  EXPECT_EQ(steps_applied(2), 1);
  EXPECT_EQ(undecided(kCaller), 1u);
  EXPECT_EQ(steps_applied(kCaller), 0);
  let_through({2});
  EXPECT_TRUE(eventually([&] { return steps_applied(kCaller) == 1; }));
  EXPECT_EQ(undecided(kCaller), 0u);
}

TEST_F(StepCutOffTest, HogwildSaysMaybeOfAnOwnerWhoseAnswerDiedWithIt) {
  const Models models({world_[1].id(), world_[2].id()});
  Sgd optimizer(models.sets, SGDOptions(kRate), {.mode = UpdateMode::kHogwild});
  Context context;
  context.backward({models.loss()});
  const auto loss = lose({id_of(&OptimizerShard::apply)}, {2}, true);
  const Future<StepResult> step = optimizer.step_async(context);
  ASSERT_TRUE(eventually([&] { return loss->lost > 0; }));
  world_.kill(2);
  const StepResult result = step.wait();
  EXPECT_EQ(result.outcome, Outcome::kDataLoss);
  EXPECT_EQ(result.status.code(), absl::StatusCode::kDataLoss);
  EXPECT_THAT(text_of(result), HasSubstr("worker1: applied; worker2: maybe"));
  for (const size_t owner : {1, 2}) EXPECT_EQ(steps_applied(owner), 1) << owner;
}

}  // namespace step_failures_test
