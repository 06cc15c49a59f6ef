#include "weft/dist_optim/steps/step_history.h"

#include <string>

#include <gtest/gtest.h>

namespace weft {
namespace {

using History = StepHistory<int64_t, std::string>;

// A trainer that is at position 100 + n after step n, and whose state names the last step.
History after_steps(uint64_t first, uint64_t last, uint64_t reach) {
  History history(reach);
  history.begin(first, 100 + static_cast<int64_t>(first), "begin");
  for (uint64_t n = first + 1; n <= last; ++n) {
    history.expect(100 + static_cast<int64_t>(n));
    history.keep(n, absl::StrCat("after ", n));
  }
  return history;
}

void expect_moment(const absl::StatusOr<History::Moment>& moment, int64_t position,
                   const std::string& state) {
  ASSERT_TRUE(moment.ok()) << moment.status();
  EXPECT_EQ(moment->position, position);
  EXPECT_EQ(moment->state, state);
}

TEST(StepHistoryTest, GoesBackToTheStateAfterAStep) {
  History history = after_steps(0, 7, 10);
  expect_moment(history.go_back(5), 105, "after 5");
  expect_moment(history.go_back(5), 105, "after 5");
  expect_moment(history.go_back(0), 100, "begin");
}

TEST(StepHistoryTest, ForgetsTheStepsThatAreDoneAgain) {
  History history = after_steps(0, 7, 10);
  ASSERT_TRUE(history.go_back(3).ok());
  EXPECT_EQ(history.go_back(5).status().code(), absl::StatusCode::kDataLoss);
  history.expect(204);
  history.keep(4, "again");
  expect_moment(history.go_back(4), 204, "again");
}

TEST(StepHistoryTest, AStepWhoseAnswerWasLostHasItsPositionAndTheStateBeforeIt) {
  History history = after_steps(0, 7, 10);
  history.expect(999);
  expect_moment(history.go_back(8), 999, "after 7");
  expect_moment(history.go_back(7), 107, "after 7");
}

TEST(StepHistoryTest, AnAnswerMayBeLostBeforeTheFirstStepIsKept) {
  History history = after_steps(3, 3, 10);
  history.expect(104);
  expect_moment(history.go_back(4), 104, "begin");
}

TEST(StepHistoryTest, TwoStepsAheadIsDataLossThatNamesTheStep) {
  const absl::Status status = after_steps(0, 7, 10).go_back(9).status();
  EXPECT_EQ(status.code(), absl::StatusCode::kDataLoss);
  EXPECT_NE(status.message().find("step 9"), std::string::npos) << status;
}

TEST(StepHistoryTest, KeepsAsManyStepsAsItsReach) {
  History history = after_steps(0, 20, 4);
  EXPECT_EQ(history.earliest(), 116);
  EXPECT_EQ(history.go_back(15).status().code(), absl::StatusCode::kDataLoss);
  expect_moment(history.go_back(16), 116, "after 16");
}

// A restarted trainer begins in the middle: it stays there if the owners know less.
TEST(StepHistoryTest, ABeginningInTheMiddleHoldsForAllEarlierSteps) {
  History history = after_steps(50, 52, 10);
  expect_moment(history.go_back(41), 150, "begin");
  EXPECT_EQ(history.go_back(52).status().code(), absl::StatusCode::kDataLoss);
  history.expect(151);
  history.keep(42, "after 42");
  expect_moment(history.go_back(42), 151, "after 42");
}

TEST(StepHistoryTest, WhatWasDroppedDoesNotComeBackAsTheBeginning) {
  History history = after_steps(50, 60, 4);
  EXPECT_EQ(history.go_back(49).status().code(), absl::StatusCode::kDataLoss);
  history.begin(60, 7, "new");
  expect_moment(history.go_back(49), 7, "new");
}

}  // namespace
}  // namespace weft
