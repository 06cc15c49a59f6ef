// The optimizer's step as state machines, case by case: what an owner answers, what a caller
// decides.
#include <cmath>
#include <string>
#include <vector>

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "weft/base/status.h"
#include "weft/dist_optim/steps/step_caller_core.h"
#include "weft/dist_optim/steps/step_owner_core.h"

namespace weft::dist_optim_internal {
namespace {

using ::testing::ElementsAre;
using ::testing::HasSubstr;
using Outcome = StepResult::Outcome;

const WorkerId kCaller{9, 1}, kA{1, 1}, kB{2, 1}, kC{3, 1};
StepId id(uint64_t number, uint64_t optimizer = 1) { return {{kCaller, optimizer}, number}; }
const StepUpdate kUpdate{{0.1}, 0.5};
const StepDecision kNot{StepOutcome::kPrepared, 1, 0}, kDid{StepOutcome::kApplied, 0.25, 4};

template <class Action, class Actions>
std::vector<Action> all_of(const Actions& actions) {
  std::vector<Action> found;
  for (const auto& action : actions) {
    if (const auto* one = std::get_if<Action>(&action)) found.push_back(*one);
  }
  return found;
}

// ---- an owner

class StepOwnerCoreTest : public ::testing::Test {
 protected:
  void prepare(const StepId& step, double norm2 = 4) {
    ASSERT_EQ(core_.prepare(step).value(), std::nullopt);
    core_.on_prepared(step, norm2, {0.1}, out_);
  }
  std::vector<step::Ask> take_asks() {
    std::vector<step::Ask> asks = all_of<step::Ask>(out_);
    out_.clear();
    return asks;
  }
  StepOwnerCore core_;
  OwnerActions out_;
};

TEST_F(StepOwnerCoreTest, ACommitIsAppliedOnce) {
  prepare(id(1));
  EXPECT_EQ(core_.prepare(id(1)).value(), 4.0) << "the same number: the same answer";
  ASSERT_TRUE(core_.commit(id(1), kUpdate, out_).ok());
  ASSERT_TRUE(core_.commit(id(1), kUpdate, out_).ok());
  EXPECT_EQ(all_of<step::Apply>(out_).size(), 1u);
  EXPECT_EQ(core_.prepare(id(1)).value(), 4.0);
  EXPECT_EQ(core_.applied(id(1))->update.clip, 0.5);
  EXPECT_EQ(core_.abort(id(1), out_).code(), absl::StatusCode::kFailedPrecondition);
  EXPECT_EQ(core_.newest().at(id(1).optimizer), 1u);
}

TEST_F(StepOwnerCoreTest, AnAbortOvertakesItsPrepare) {
  ASSERT_TRUE(core_.abort(id(1), out_).ok());
  EXPECT_EQ(core_.prepare(id(1)).status().code(), absl::StatusCode::kFailedPrecondition);
  EXPECT_EQ(core_.commit(id(1), kUpdate, out_).code(), absl::StatusCode::kFailedPrecondition);
  EXPECT_EQ(core_.outcome(id(1)), StepOutcome::kAborted);
  prepare(id(2));
}

TEST_F(StepOwnerCoreTest, ANewerPrepareGivesUpTheOlderOne) {
  prepare(id(1));
  prepare(id(2));
  ASSERT_EQ(all_of<step::Drop>(out_).size(), 1u);
  EXPECT_EQ(all_of<step::Drop>(out_)[0].step, id(1));
  EXPECT_EQ(core_.outcome(id(1)), StepOutcome::kAborted);
  EXPECT_THAT(core_.undecided(), ElementsAre(id(2)));
}

TEST_F(StepOwnerCoreTest, OutcomesAreRememberedThenForgottenNeverInvented) {
  for (uint64_t n = 1; n <= StepOwnerCore::kRemembered + 5; ++n) {
    prepare(id(n));
    ASSERT_TRUE(core_.commit(id(n), kUpdate, out_).ok());
  }
  EXPECT_EQ(core_.outcome(id(5)), StepOutcome::kForgotten);
  EXPECT_EQ(core_.outcome(id(6)), StepOutcome::kApplied);
  EXPECT_EQ(core_.outcome(id(1, 2)), StepOutcome::kUnknown) << "another optimizer's";
}

TEST_F(StepOwnerCoreTest, AStepThatFailedHalfWayStopsEveryOther) {
  prepare(id(1));
  prepare(id(1, 2));
  ASSERT_TRUE(core_.commit(id(1), kUpdate, out_).ok());
  core_.on_damage(id(1), absl::DataLossError("half-way"));
  EXPECT_EQ(core_.commit(id(1), kUpdate, out_).code(), absl::StatusCode::kDataLoss);
  EXPECT_EQ(core_.commit(id(1, 2), kUpdate, out_).code(), absl::StatusCode::kDataLoss);
  EXPECT_EQ(core_.settle(id(1), out_).status().code(), absl::StatusCode::kDataLoss);
  EXPECT_EQ(core_.prepare(id(2)).status().code(), absl::StatusCode::kDataLoss);
  EXPECT_EQ(core_.inquire(id(1), {}, out_).outcome, StepOutcome::kApplied) << "the others must too";
}

TEST_F(StepOwnerCoreTest, TheCallersQuestionEndsWhatIsNotApplied) {
  prepare(id(1));
  EXPECT_EQ(core_.settle(id(1), out_)->outcome, StepOutcome::kAborted);
  EXPECT_FALSE(core_.commit(id(1), kUpdate, out_).ok());
  EXPECT_EQ(core_.settle(id(2), out_)->outcome, StepOutcome::kAborted) << "never heard of";
  EXPECT_FALSE(core_.prepare(id(2)).ok());
  prepare(id(3), 9);
  ASSERT_TRUE(core_.commit(id(3), kUpdate, out_).ok());
  const StepDecision decision = *core_.settle(id(3), out_);
  EXPECT_EQ(decision.outcome, StepOutcome::kApplied);
  EXPECT_EQ(decision.clip, 0.5);
  EXPECT_EQ(decision.norm2, 9);
}

TEST_F(StepOwnerCoreTest, WithoutItsCallerItAsksTheOthersAndRefusesTheCommit) {
  core_.meet(id(1).optimizer, {kB, kC});
  prepare(id(1));
  core_.on_worker_dead(kCaller, out_);
  const std::vector<step::Ask> asks = take_asks();
  ASSERT_EQ(asks.size(), 2u);
  EXPECT_EQ(core_.commit(id(1), kUpdate, out_).code(), absl::StatusCode::kFailedPrecondition);
  core_.on_answer(id(1), 0, asks[0].round, kNot, out_);
  EXPECT_EQ(core_.outcome(id(1)), StepOutcome::kPrepared) << "one has not answered";
  core_.on_answer(id(1), 1, asks[1].round, kDid, out_);
  const std::vector<step::Apply> applied = all_of<step::Apply>(out_);
  ASSERT_EQ(applied.size(), 1u);
  EXPECT_EQ(applied[0].update.clip, kDid.clip);
  EXPECT_THAT(applied[0].update.learning_rates, ElementsAre(0.1));
  EXPECT_EQ(core_.prepare(id(2)).status().code(), absl::StatusCode::kCancelled);
}

// The asking owner takes this answer for "not applied" and may give the step up.
TEST_F(StepOwnerCoreTest, AnInquiryEndsAStepWhosePrepareHasNotArrived) {
  core_.meet(id(1).optimizer, {kB});
  EXPECT_EQ(core_.inquire(id(1), {}, out_).outcome, StepOutcome::kAborted);
  EXPECT_EQ(core_.prepare(id(1)).status().code(), absl::StatusCode::kFailedPrecondition);
  EXPECT_EQ(core_.commit(id(1), kUpdate, out_).code(), absl::StatusCode::kFailedPrecondition);
  EXPECT_TRUE(all_of<step::Apply>(out_).empty());
}

TEST_F(StepOwnerCoreTest, AnOwnerThatWasAskedRefusesTheCallersCommit) {
  core_.meet(id(1).optimizer, {kB});
  prepare(id(1));
  EXPECT_EQ(core_.inquire(id(1), {}, out_).outcome, StepOutcome::kPrepared);
  EXPECT_EQ(core_.commit(id(1), kUpdate, out_).code(), absl::StatusCode::kFailedPrecondition);
}

TEST_F(StepOwnerCoreTest, TheOnlyOwnerThatMayHaveAppliedItDoesNotCountOnceDead) {
  core_.meet(id(1).optimizer, {kB, kC});
  prepare(id(1));
  core_.on_worker_dead(kB, out_);
  core_.on_worker_dead(kCaller, out_);
  const std::vector<step::Ask> asks = take_asks();
  ASSERT_EQ(asks.size(), 1u);
  EXPECT_EQ(asks[0].other, 1u);
  EXPECT_THAT(asks[0].dead, ElementsAre(kB));
  core_.on_answer(id(1), 1, asks[0].round, kNot, out_);
  EXPECT_EQ(core_.outcome(id(1)), StepOutcome::kAborted);
}

TEST_F(StepOwnerCoreTest, AnOwnerThatDiedBeforeThePrepareIsNotAsked) {
  core_.meet(id(1).optimizer, {kB, kC});
  core_.on_worker_dead(kB, out_);
  prepare(id(1));
  core_.on_worker_dead(kCaller, out_);
  const std::vector<step::Ask> asks = take_asks();
  ASSERT_EQ(asks.size(), 1u);
  EXPECT_EQ(asks[0].other, 1u);
  EXPECT_THAT(asks[0].dead, ElementsAre(kB));
}

// B has applied the step, tells this owner, and dies before it tells C.
TEST_F(StepOwnerCoreTest, WhatADeadOwnerHadSaidDoesNotCountOnceAnotherOwnerKnowsItDead) {
  core_.meet(id(1).optimizer, {kB, kC});
  prepare(id(1));
  core_.on_worker_dead(kCaller, out_);
  const std::vector<step::Ask> asks = take_asks();
  EXPECT_EQ(core_.inquire(id(1), {kB}, out_).outcome, StepOutcome::kPrepared);  // C decides by this
  core_.on_answer(id(1), 0, asks[0].round, kDid, out_);                         // too late
  EXPECT_EQ(core_.outcome(id(1)), StepOutcome::kPrepared);
  const std::vector<step::Ask> again = take_asks();
  ASSERT_EQ(again.size(), 1u);
  EXPECT_GT(again[0].round, asks[1].round);
  core_.on_answer(id(1), 1, asks[1].round, kNot, out_);
  EXPECT_EQ(core_.outcome(id(1)), StepOutcome::kPrepared) << "C did not know then that B is dead";
  core_.on_answer(id(1), 1, again[0].round, kNot, out_);
  EXPECT_EQ(core_.outcome(id(1)), StepOutcome::kAborted);
}

TEST_F(StepOwnerCoreTest, AnAnswerThatCameBeforeTheDeathIsKnownCounts) {
  core_.meet(id(1).optimizer, {kB, kC});
  prepare(id(1));
  core_.on_worker_dead(kCaller, out_);
  const std::vector<step::Ask> asks = take_asks();
  core_.on_answer(id(1), 0, asks[0].round, kDid, out_);
  EXPECT_EQ(core_.inquire(id(1), {kB}, out_).outcome, StepOutcome::kApplied)
      << "so C applies it too";
}

TEST_F(StepOwnerCoreTest, WhomItAsksIsNotChangedAfterItsCallersDeath) {
  core_.meet(id(1).optimizer, {kB, kC});
  prepare(id(1));
  core_.on_worker_dead(kCaller, out_);
  const std::vector<step::Ask> asks = take_asks();
  core_.meet(id(1).optimizer, {kB});
  core_.on_answer(id(1), 0, asks[0].round, kNot, out_);
  EXPECT_EQ(core_.outcome(id(1)), StepOutcome::kPrepared) << "C has not answered";
}

TEST_F(StepOwnerCoreTest, AnEndedOptimizerIsForgottenWithWhatItLeftPrepared) {
  prepare(id(1));
  ASSERT_TRUE(core_.commit(id(1), kUpdate, out_).ok());
  prepare(id(2));
  out_.clear();
  core_.forget(id(1).optimizer, out_);
  EXPECT_EQ(all_of<step::Drop>(out_).size(), 1u);
  EXPECT_TRUE(core_.newest().empty());
  EXPECT_EQ(core_.outcome(id(1)), StepOutcome::kUnknown);
}

TEST_F(StepOwnerCoreTest, AnOwnerAloneWithADeadCallerAborts) {
  core_.meet(id(1).optimizer, {});
  prepare(id(1));
  core_.on_worker_dead(kCaller, out_);
  EXPECT_EQ(core_.outcome(id(1)), StepOutcome::kAborted);
  prepare({{kA, 1}, 1});
  EXPECT_THAT(core_.undecided(), ElementsAre(StepId{{kA, 1}, 1})) << "another caller lives";
}

TEST_F(StepOwnerCoreTest, ASequenceGoesOnWithTheNextOptimizer) {
  EXPECT_EQ(core_.join(id(1).optimizer, "adam@t")->applied, 0u);
  prepare(id(1));
  ASSERT_TRUE(core_.commit(id(1), kUpdate, out_).ok());
  prepare(id(2));
  EXPECT_EQ(core_.join(id(1, 2).optimizer, "adam@t").status().code(),
            absl::StatusCode::kUnavailable)
      << "step 2 may yet be applied";
  ASSERT_TRUE(core_.abort(id(2), out_).ok());
  const SequenceStanding standing = *core_.join(id(1, 2).optimizer, "adam@t");
  EXPECT_EQ(standing.applied, 1u);
  EXPECT_FALSE(standing.restored);
  EXPECT_FALSE(core_.prepare(id(1, 2)).ok()) << "the sequence has a step 1";
  prepare(id(2, 2));
}

TEST_F(StepOwnerCoreTest, AfterARestartALineIsRefusedUntilItResumes) {
  core_.restore({{"adam@t", 10}}, out_);
  const SequenceStanding standing = *core_.join(id(1).optimizer, "adam@t");
  EXPECT_EQ(standing.applied, 10u);
  EXPECT_TRUE(standing.restored);
  const absl::Status refused = core_.prepare(id(15)).status();
  EXPECT_EQ(refused.code(), absl::StatusCode::kDataLoss);
  EXPECT_THAT(std::string(refused.message()), HasSubstr("step 10 of adam@t"));
  EXPECT_EQ(core_.resume(id(1).optimizer, 14, false).code(), absl::StatusCode::kFailedPrecondition);
  ASSERT_TRUE(core_.resume(id(1).optimizer, 10, false).ok());
  prepare(id(11));
  EXPECT_FALSE(core_.join(id(1).optimizer, "adam@t")->restored);
}

TEST_F(StepOwnerCoreTest, GoingBackEndsWhatWasPreparedAndSetsEveryoneBack) {
  ASSERT_TRUE(core_.join(id(1).optimizer, "adam@t").ok());
  for (uint64_t n = 1; n <= 3; ++n) {
    prepare(id(n));
    ASSERT_TRUE(core_.commit(id(n), kUpdate, out_).ok());
  }
  prepare(id(4));
  prepare(id(1, 2));  // of an optimizer without a step sequence
  core_.restore({{"adam@t", 2}}, out_);
  EXPECT_EQ(all_of<step::Drop>(out_).size(), 2u);
  EXPECT_EQ(core_.prepare(id(5)).status().code(), absl::StatusCode::kDataLoss);
  EXPECT_EQ(core_.prepare(id(2, 2)).status().code(), absl::StatusCode::kDataLoss);
  ASSERT_TRUE(core_.resume(id(1).optimizer, 2, false).ok());
  prepare(id(3));
  EXPECT_EQ(core_.sequences().at("adam@t"), 2u);
}

TEST(CheckNorm, OnlyWhatIsClippedMustBeFinite) {
  for (const double bad : {std::nan(""), HUGE_VAL}) {
    EXPECT_EQ(check_norm(bad, 0, "x"), absl::OkStatus()) << "nothing is clipped";
    const absl::Status refused = check_norm(bad, 1, "the gradient of x");
    EXPECT_EQ(refused.code(), absl::StatusCode::kInvalidArgument);
    EXPECT_THAT(std::string(refused.message()), HasSubstr("the gradient of x cannot be clipped"));
  }
  EXPECT_EQ(check_norm(1e300, 1, "x"), absl::OkStatus());
}

// ---- a caller

class StepCallerCoreTest : public ::testing::Test {
 protected:
  static StepCallerCore make(size_t remote, size_t local = 0, std::string sequence = "",
                             bool hogwild = false) {
    StepCallerCore::Options options;
    options.optimizer = id(0).optimizer;
    for (size_t i = 0; i < local; ++i) options.owners.push_back({"local", true});
    for (size_t i = 0; i < remote; ++i) options.owners.push_back({absl::StrCat("w", i), false});
    options.sequence = std::move(sequence);
    options.hogwild = hogwild;
    return StepCallerCore(std::move(options));
  }
  template <class Action>
  std::vector<size_t> owners() const {
    std::vector<size_t> places;
    for (const Action& action : all_of<Action>(out_)) places.push_back(action.owner);
    return places;
  }
  StepResult told() const {
    const std::vector<step::Tell> tells = all_of<step::Tell>(out_);
    EXPECT_EQ(tells.size(), 1u);
    return tells.empty() ? StepResult() : tells[0].result;
  }
  static absl::Status dead() { return with_ran(absl::UnavailableError("died"), Ran::kMaybe); }

  CallerActions out_;
};

TEST_F(StepCallerCoreTest, AllOwnersPrepareThenAllCommitWithOneFactor) {
  StepCallerCore core = make(2);
  ASSERT_TRUE(core.begin(1, out_).ok());
  EXPECT_EQ(core.begin(1, out_).code(), absl::StatusCode::kFailedPrecondition);
  EXPECT_THAT(owners<step::Prepare>(), ElementsAre(0, 1));
  core.on_prepared(1, 16.0, out_);
  EXPECT_TRUE(owners<step::Commit>().empty());
  core.on_prepared(0, 9.0, out_);
  ASSERT_THAT(owners<step::Commit>(), ElementsAre(0, 1));
  for (const step::Commit& commit : all_of<step::Commit>(out_)) {
    EXPECT_NEAR(commit.clip, 1.0 / 5, 1e-6);
  }
  core.on_committed(0, StepDurable{1}, out_);
  core.on_committed(1, StepDurable{3, 8, "disk full"}, out_);
  const StepResult result = told();
  EXPECT_EQ(result.outcome, Outcome::kApplied);
  EXPECT_EQ(result.number, 1u);
  EXPECT_EQ(result.gradient_norm, 5);
  EXPECT_EQ(result.durable, 1u) << "on all of them";
  EXPECT_EQ(result.checkpoint.code(), absl::StatusCode::kResourceExhausted);
  EXPECT_THAT(std::string(result.checkpoint.message()), HasSubstr("w1: disk full"));
  EXPECT_FALSE(core.stepping());
  EXPECT_EQ(core.finished(), 1);
}

TEST_F(StepCallerCoreTest, ANormThatIsNotFiniteAbortsTheClippedStepOnAllOwners) {
  const struct {
    double one, other;
    const char* named;
  } cases[] = {{9, std::nan(""), "the gradients on w1"},
               {HUGE_VAL, 9, "the gradients on w0"},
               {1e308, 1e308, "the gradients of all owners"}};
  for (const auto& test : cases) {
    SCOPED_TRACE(test.named);
    StepCallerCore core = make(2);
    out_.clear();
    ASSERT_TRUE(core.begin(1, out_).ok());
    core.on_prepared(0, test.one, out_);
    core.on_prepared(1, test.other, out_);
    EXPECT_TRUE(owners<step::Commit>().empty());
    ASSERT_THAT(owners<step::Abort>(), ElementsAre(0, 1));
    core.on_aborted(0, out_);
    core.on_aborted(1, out_);
    EXPECT_EQ(told().outcome, Outcome::kNotApplied);
    EXPECT_EQ(told().status.code(), absl::StatusCode::kInvalidArgument);
    EXPECT_THAT(std::string(told().status.message()), HasSubstr(test.named));
  }
}

TEST_F(StepCallerCoreTest, WithoutClippingANormThatIsNotFiniteIsToldAndNotRefused) {
  StepCallerCore core = make(2);
  ASSERT_TRUE(core.begin(0, out_).ok());
  core.on_prepared(0, 9.0, out_);
  core.on_prepared(1, std::nan(""), out_);
  ASSERT_THAT(owners<step::Commit>(), ElementsAre(0, 1));
  for (const step::Commit& commit : all_of<step::Commit>(out_)) EXPECT_EQ(commit.clip, 1);
  for (const size_t owner : {0, 1}) core.on_committed(owner, StepDurable{}, out_);
  EXPECT_TRUE(std::isnan(told().gradient_norm));
}

TEST_F(StepCallerCoreTest, KeptLeavesOutTheOwnersWithoutCheckpoints) {
  StepCallerCore core = make(3);
  ASSERT_TRUE(core.begin(0, out_).ok());
  for (size_t owner = 0; owner < 3; ++owner) core.on_prepared(owner, 1.0, out_);
  core.on_committed(0, StepDurable{}, out_);
  core.on_committed(1, StepDurable{.number = 5, .keeps = true}, out_);
  core.on_committed(2, StepDurable{.number = 3, .keeps = true}, out_);
  EXPECT_EQ(told().durable, 0u);
  EXPECT_EQ(told().kept, 3u);
}

TEST_F(StepCallerCoreTest, OneRefusalAbortsAllAndIsNamed) {
  StepCallerCore core = make(2);
  ASSERT_TRUE(core.begin(0, out_).ok());
  core.on_prepared(1, absl::InvalidArgumentError("no"), out_);
  EXPECT_TRUE(owners<step::Abort>().empty()) << "the other one may not have got its PREPARE yet";
  core.on_prepared(0, 1.0, out_);
  EXPECT_THAT(owners<step::Abort>(), ElementsAre(0, 1));
  core.on_aborted(1, out_);
  core.on_aborted(0, out_);
  EXPECT_EQ(told().outcome, Outcome::kNotApplied);
  EXPECT_EQ(told().status.code(), absl::StatusCode::kInvalidArgument);
  EXPECT_EQ(core.finished(), 0);
}

TEST_F(StepCallerCoreTest, AnOwnerThatDiesAfterTheDecisionIsNamedAndTheStepCounts) {
  StepCallerCore core = make(2);
  ASSERT_TRUE(core.begin(0, out_).ok());
  core.on_prepared(0, 1.0, out_);
  core.on_prepared(1, 1.0, out_);
  core.on_committed(0, StepDurable(), out_);
  core.on_committed(1, dead(), out_);
  EXPECT_EQ(told().outcome, Outcome::kDataLoss);
  EXPECT_THAT(std::string(told().status.message()),
              HasSubstr("step 1 is not known to be applied by w1"));
  EXPECT_EQ(core.finished(), 1);
}

TEST_F(StepCallerCoreTest, TheOnlyRemoteOwnerDecidesAndTheLocalOnesFollow) {
  StepCallerCore core = make(1, 1);
  ASSERT_TRUE(core.begin(0, out_).ok());
  EXPECT_THAT(owners<step::Prepare>(), ElementsAre(0));
  core.on_prepared(0, 9.0, out_);
  ASSERT_THAT(owners<step::Finish>(), ElementsAre(1));
  EXPECT_EQ(all_of<step::Finish>(out_)[0].others_norm2, 9.0);
  core.on_finished(1, StepSummary{25, 0.5}, out_);
  ASSERT_THAT(owners<step::Commit>(), ElementsAre(0));
  EXPECT_EQ(all_of<step::Commit>(out_)[0].clip, 0.5);
  core.on_committed(0, StepDurable(), out_);
  EXPECT_EQ(told().outcome, Outcome::kApplied);
  EXPECT_EQ(told().gradient_norm, 5);
}

TEST_F(StepCallerCoreTest, ALostAnswerIsAskedForAndStillDecidesAfterTheWait) {
  StepCallerCore core = make(1, 1);
  ASSERT_TRUE(core.begin(0, out_).ok());
  core.on_prepared(0, 9.0, out_);
  core.on_finished(1, with_ran(absl::DeadlineExceededError("late"), Ran::kMaybe), out_);
  EXPECT_THAT(owners<step::Settle>(), ElementsAre(1));
  EXPECT_EQ(all_of<step::LimitWait>(out_).size(), 1u);
  core.on_late("no answer", out_);
  EXPECT_EQ(told().outcome, Outcome::kDataLoss);
  EXPECT_THAT(std::string(told().status.message()), HasSubstr("w0: no answer"));
  EXPECT_FALSE(core.begin(0, out_).ok()) << "it goes on";
  core.on_settled(1, kDid, out_);
  ASSERT_THAT(owners<step::Commit>(), ElementsAre(0));
  EXPECT_EQ(all_of<step::Commit>(out_)[0].clip, kDid.clip);
  core.on_committed(0, StepDurable(), out_);
  EXPECT_EQ(all_of<step::Tell>(out_).size(), 1u) << "told once";
  EXPECT_EQ(core.finished(), 1);
}

// An owner that lives and does not answer may have applied the step.
TEST_F(StepCallerCoreTest, AQuestionWithoutAnAnswerIsDataLossNotNotApplied) {
  StepCallerCore core = make(1, 1);
  ASSERT_TRUE(core.begin(0, out_).ok());
  core.on_prepared(0, 9.0, out_);
  core.on_finished(1, with_ran(absl::DeadlineExceededError("late"), Ran::kMaybe), out_);
  core.on_settled(1, with_ran(absl::DeadlineExceededError("late again"), Ran::kMaybe), out_);
  EXPECT_THAT(owners<step::Abort>(), ElementsAre(0));
  core.on_aborted(0, out_);
  EXPECT_EQ(told().outcome, Outcome::kDataLoss);
  EXPECT_THAT(std::string(told().status.message()),
              HasSubstr("step 1 is not known to be applied by w0"));
  EXPECT_EQ(core.finished(), 0);
}

TEST_F(StepCallerCoreTest, TheOnlyRemoteOwnersDeathMeansNotAppliedAnywhere) {
  StepCallerCore core = make(1, 1);
  ASSERT_TRUE(core.begin(0, out_).ok());
  core.on_prepared(0, 9.0, out_);
  core.on_finished(1, dead(), out_);
  core.on_settled(1, dead(), out_);
  EXPECT_THAT(owners<step::Abort>(), ElementsAre(0));
  core.on_aborted(0, out_);
  EXPECT_EQ(told().outcome, Outcome::kNotApplied);
  EXPECT_EQ(told().status.code(), absl::StatusCode::kUnavailable);
}

TEST_F(StepCallerCoreTest, HogwildListsWhoAppliedIt) {
  StepCallerCore core = make(2, 0, "", true);
  ASSERT_TRUE(core.begin(0, out_).ok());
  EXPECT_THAT(owners<step::ApplyAlone>(), ElementsAre(0, 1));
  core.on_applied_alone(1, with_ran(absl::FailedPreconditionError("no"), Ran::kNo), out_);
  core.on_applied_alone(0, StepDurable(), out_);
  EXPECT_EQ(told().outcome, Outcome::kDataLoss);
  EXPECT_THAT(std::string(told().status.message()), HasSubstr("w0: applied; w1: not applied"));
}

TEST_F(StepCallerCoreTest, ALineBeginsBehindTheFurthestOwner) {
  StepCallerCore core = make(2, 0, "adam@t");
  ASSERT_TRUE(core.begin(0, out_).ok());
  EXPECT_THAT(owners<step::Join>(), ElementsAre(0, 1));
  core.on_joined(1, SequenceStanding{7, false}, out_);
  core.on_joined(0, SequenceStanding{0, false}, out_);
  EXPECT_THAT(owners<step::Prepare>(), ElementsAre(0, 1));
  EXPECT_EQ(core.step().number, 8u);
}

TEST_F(StepCallerCoreTest, AnOwnerThatCameBackFailsEveryStepUntilTheProgramResumes) {
  StepCallerCore core = make(2, 0, "adam@t");
  for (int attempt = 0; attempt < 2; ++attempt) {
    out_.clear();
    ASSERT_TRUE(core.begin(0, out_).ok());
    core.on_joined(0, SequenceStanding{14, false}, out_);
    core.on_joined(1, SequenceStanding{10, true}, out_);
    EXPECT_EQ(told().outcome, Outcome::kDataLoss);
    EXPECT_EQ(told().durable, 10u);
    EXPECT_THAT(std::string(told().status.message()),
                HasSubstr("w1 came back after step 10 of adam@t, of which 14 are known"));
    EXPECT_TRUE(owners<step::Prepare>().empty());
  }
  ASSERT_TRUE(core.resumed(10).ok());
  ASSERT_TRUE(core.begin(0, out_).ok());
  EXPECT_EQ(core.step().number, 11u);
}

TEST_F(StepCallerCoreTest, AnOwnerThatWasSetBackBetweenStepsIsAskedHowFarItIs) {
  StepCallerCore core = make(1, 0, "adam@t");
  ASSERT_TRUE(core.resumed(3).ok());
  ASSERT_TRUE(core.begin(0, out_).ok());
  core.on_finished(0, with_ran(absl::DataLossError("resume there"), Ran::kYes), out_);
  EXPECT_EQ(told().outcome, Outcome::kDataLoss);
  out_.clear();
  ASSERT_TRUE(core.begin(0, out_).ok());
  EXPECT_THAT(owners<step::Join>(), ElementsAre(0));
}

}  // namespace
}  // namespace weft::dist_optim_internal
