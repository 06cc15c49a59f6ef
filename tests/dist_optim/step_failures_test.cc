// A step that fails: an owner dies in its midst, refuses it or does not hear of it in time, or the
// caller asks for nonsense. What the owners have done is what the step says.
#include <algorithm>
#include <array>
#include <atomic>
#include <chrono>
#include <cmath>
#include <limits>
#include <memory>
#include <ostream>
#include <stdexcept>
#include <string>
#include <utility>
#include <vector>

#include <ATen/TensorOperators.h>
#include <ATen/ops/equal.h>
#include <ATen/ops/full.h>
#include <ATen/ops/ones_like.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "absl/strings/str_cat.h"
#include "weft/rpc/registry.h"
#include "weft/tests/dist_optim/optimizer_world.h"
#include "weft/tests/support/error_of.h"
#include "weft/tests/support/worker_world.h"

namespace step_failures_test {

using ::testing::AllOf;
using ::testing::HasSubstr;
using torch::optim::SGDOptions;
using weft::FrameHeader;
using weft::FrameKind;
using weft::Future;
using weft::InprocNetwork;
using weft::ParameterSet;
using weft::RRef;
using weft::StepOptions;
using weft::StepResult;
using weft::TensorMap;
using weft::UpdateMode;
using weft::dist_autograd::Context;
using weft::internal::OptimizerShard;
using weft::internal::ShardStepper;
using weft::testing::error_of;
using weft::testing::eventually;
using weft::testing::TestWorld;
using weft::testing::WorkerWorld;
using Outcome = StepResult::Outcome;
using Sgd = weft::DistributedOptimizer<torch::optim::SGD>;

constexpr size_t kCaller = 0;  // the owners are workers 1 and 2
constexpr double kRate = 0.5;
constexpr double kNan = std::numeric_limits<double>::quiet_NaN();
constexpr char kShared[] = "twin";  // a shared_name, for tests that look into the owners' shards

// The rate times these is exact, so values can be compared bit for bit.
at::Tensor start() { return at::full({2}, 0.1, at::kDouble); }
at::Tensor input(size_t owner) {
  return at::full({2}, static_cast<double>(1 << owner), at::kDouble);
}

// What the test sees of the owners' parameters, whatever becomes of the owners.
std::array<std::shared_ptr<ParameterSet>, 3> seen;

// The loss is the sum of weight * x + bias.
class Model {
 public:
  explicit Model(int64_t owner)
      : set_(std::make_shared<ParameterSet>(std::vector<weft::NamedParameter>{
            {"weight", start().requires_grad_(true)}, {"bias", start().requires_grad_(true)}})) {
    seen.at(static_cast<size_t>(owner)) = set_;
  }
  at::Tensor forward(const at::Tensor& x) {
    const std::vector<at::Tensor> read = set_->read(weft::CallScope::current().context);
    return read[0] * x + read[1];
  }
  std::shared_ptr<ParameterSet> parameters() { return set_; }

 private:
  const std::shared_ptr<ParameterSet> set_;
};
WEFT_REGISTER_CLASS(Model, weft::constructor<int64_t>(), &Model::forward, &Model::parameters);

// A model on each of these workers.
struct Models {
  explicit Models(const std::vector<weft::WorkerId>& owners) {
    for (const weft::WorkerId owner : owners) {
      models.push_back(weft::remote<Model>(owner, static_cast<int64_t>(owner.index)));
      sets.push_back(models.back().remote(&Model::parameters));
      (void)forward(models.size() - 1);  // it is there
    }
  }
  at::Tensor forward(size_t place) const {
    const RRef<Model>& model = models[place];
    return model.rpc_sync(&Model::forward, input(model.owner().index));
  }
  at::Tensor loss() const {
    at::Tensor sum;
    for (size_t i = 0; i < models.size(); ++i) sum = i == 0 ? forward(i) : sum + forward(i);
    return sum.sum();
  }
  std::vector<RRef<Model>> models;
  std::vector<RRef<ParameterSet>> sets;
};

// How many plain steps lead from the start to the values there, bit for bit; -1: no number does.
int steps_applied(size_t owner) {
  const TensorMap now = seen.at(owner)->state();
  at::Tensor weight = start(), bias = start();
  for (int steps = 0; steps < 4; ++steps) {
    if (at::equal(now.at("weight"), weight) && at::equal(now.at("bias"), bias)) return steps;
    weight = weight - input(owner) * kRate;
    bias = bias - at::ones_like(bias) * kRate;
  }
  return -1;
}

// Steps of the optimizers named kShared that are prepared and undecided there.
size_t undecided(size_t owner) {
  const auto stepper = std::static_pointer_cast<ShardStepper>(
      seen.at(owner)->shared(kShared, [] { return std::shared_ptr<void>(); }));
  return stepper == nullptr ? 0 : stepper->undecided().size();
}

void expect_same(const TensorMap& now, const TensorMap& before, const std::string& when) {
  EXPECT_EQ(now.size(), before.size()) << when;
  for (const auto& [name, value] : before) {
    EXPECT_TRUE(now.contains(name) && at::equal(now.at(name), value)) << name << ", " << when;
  }
}

std::string text_of(const StepResult& result) { return std::string(result.status.message()); }

void expect_not_applied(const StepResult& result, absl::StatusCode code, const std::string& named) {
  EXPECT_EQ(result.outcome, Outcome::kNotApplied) << result.status;
  EXPECT_EQ(result.status.code(), code) << result.status;
  EXPECT_THAT(text_of(result), HasSubstr(named));
}

// ---- Nobody dies: steps that are refused.

class StepRefusedTest : public ::testing::Test {
 protected:
  void TearDown() override { seen.fill(nullptr); }
  std::vector<weft::WorkerId> owners() const { return {world_.id(1), world_.id(2)}; }

  TestWorld world_{weft::testing::with_autograd(3)};
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

// One set: nothing is asked of the owner before the first step.
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
  (void)first.state_dict();  // it is there
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

// With momentum and weight decay a gradient of zeros would change them.
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
  (void)locked.state_dict();  // it is there: owner 2 refuses the mode
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

// ---- Messages are lost, and owners die.

class StepCutOffTest : public ::testing::Test {
 protected:
  void TearDown() override { seen.fill(nullptr); }

  template <class M>
  uint64_t id_of(M method) {
    return (*world_[kCaller].runtime()->registry().find_callable(
                weft::internal::method_key<OptimizerShard>(method), "a shard's method"))
        ->id;
  }

  // What has become of the messages that `lose` is told to lose.
  struct Loss {
    std::atomic<size_t> lost{0};
    std::atomic<uint64_t> call{0};  // whose answer is to be lost
  };
  // The caller's calls of these methods to these owners are lost; or their answers (one call's).
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
  // What was lost between the caller and these owners is sent again.
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
  {  // The dead owner's parameters are still the optimizer's.
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

// PREPARE and COMMIT in one message: what the dead owner did died with it.
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
  // The step is part of a handler, which is cancelled once the answer is lost.
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
  // Its PREPARE arrives now.
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
  // It still goes on.
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

// The caller has given up waiting, but not its decision.
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
