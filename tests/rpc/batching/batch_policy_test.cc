// When batches begin, and how their size follows the goal, with made-up times.
#include "weft/rpc/batching/internal/batch_policy.h"

#include <gtest/gtest.h>

namespace weft::rpc_internal {
namespace {

using std::chrono::microseconds;
using std::chrono::milliseconds;

const TimePoint kStart = TimePoint() + std::chrono::hours(1);

TEST(BatchPolicy, AFullBatchBeginsAtOnceOthersWhenTheOldestHasWaited) {
  const BatchPolicy policy({.max_size = 4, .max_wait = milliseconds(3)});
  EXPECT_EQ(policy.begins_at(4, kStart), TimePoint::min());
  EXPECT_EQ(policy.begins_at(5, kStart), TimePoint::min());
  EXPECT_EQ(policy.begins_at(3, kStart), kStart + milliseconds(3));
}

TEST(BatchPolicy, WithoutAWaitNobodyWaitsForOthers) {
  const BatchPolicy policy({.max_size = 4});
  EXPECT_EQ(policy.begins_at(1, kStart), kStart);
}

TEST(BatchPolicy, UntilFullOnlyMoreCallsHelp) {
  const BatchPolicy policy({.max_size = 4, .max_wait = kUntilFull});
  EXPECT_EQ(policy.begins_at(3, kStart), kNever);
  EXPECT_EQ(policy.begins_at(4, kStart), TimePoint::min());
}

// An execution of n calls takes 1 ms and 0.1 ms for each call. With 40 calls it takes half of 10
// ms.
TEST(BatchPolicy, TheSizeSettlesWhereAnExecutionTakesHalfTheGoal) {
  BatchPolicy policy({.max_size = 1000, .latency_goal = milliseconds(10)});
  EXPECT_EQ(policy.size(), 1u);
  for (int batch = 0; batch < 60; ++batch) {
    policy.finished(true, milliseconds(1) + policy.size() * microseconds(100));
  }
  for (int batch = 0; batch < 100; ++batch) {
    policy.finished(true, milliseconds(1) + policy.size() * microseconds(100));
    EXPECT_GE(policy.size(), 35u);
    EXPECT_LE(policy.size(), 41u);
  }
}

TEST(BatchPolicy, TheSizeGrowsOnlyWhereItWasUsedAndStaysWithinItsBounds) {
  BatchPolicy policy({.max_size = 3, .latency_goal = milliseconds(10)});
  policy.finished(false, milliseconds(1));
  EXPECT_EQ(policy.size(), 1u);
  for (int batch = 0; batch < 9; ++batch) policy.finished(true, milliseconds(1));
  EXPECT_EQ(policy.size(), 3u);
  for (int batch = 0; batch < 9; ++batch) policy.finished(true, milliseconds(6));
  EXPECT_EQ(policy.size(), 1u);
}

TEST(BatchPolicy, TheGoalCutsTheWait) {
  BatchPolicy policy(
      {.max_size = 64, .max_wait = milliseconds(8), .latency_goal = milliseconds(10)});
  policy.finished(true, milliseconds(2));
  policy.finished(true, milliseconds(2));  // two calls per batch now
  EXPECT_EQ(policy.begins_at(1, kStart), kStart + milliseconds(6));
  for (int batch = 0; batch < 100; ++batch) policy.finished(true, milliseconds(20));
  EXPECT_EQ(policy.begins_at(0, kStart), kStart);
}

TEST(BatchPolicy, AsManyAsWereThereLatelyAreEnough) {
  BatchPolicy policy({.max_size = 64, .max_wait = milliseconds(3), .adaptive = true});
  EXPECT_EQ(policy.begins_at(1, kStart), TimePoint::min());  // no other caller has been seen
  policy.seen(5);
  EXPECT_EQ(policy.begins_at(4, kStart), kStart + milliseconds(3));
  EXPECT_EQ(policy.begins_at(5, kStart), TimePoint::min());
  // A caller that has gone is remembered for a while, not for ever.
  for (int batch = 0; batch < 16; ++batch) {
    policy.seen(3);
    policy.finished(false, milliseconds(1));
  }
  EXPECT_EQ(policy.begins_at(4, kStart), kStart + milliseconds(3));
  for (int batch = 0; batch < 16; ++batch) {
    policy.seen(3);
    policy.finished(false, milliseconds(1));
  }
  EXPECT_EQ(policy.begins_at(4, kStart), TimePoint::min());
  EXPECT_EQ(policy.begins_at(2, kStart), kStart + milliseconds(3));
}

TEST(BatchPolicy, ANewBoundHoldsAtOnceAndAGoalGrowsIntoIt) {
  BatchPolicy fixed({.max_size = 4});
  fixed.set_max_size(2);
  EXPECT_EQ(fixed.size(), 2u);
  BatchPolicy tuned({.max_size = 2, .latency_goal = milliseconds(10)});
  for (int batch = 0; batch < 9; ++batch) tuned.finished(true, milliseconds(1));
  tuned.set_max_size(4);
  EXPECT_EQ(tuned.size(), 2u);
  for (int batch = 0; batch < 9; ++batch) tuned.finished(true, milliseconds(1));
  EXPECT_EQ(tuned.size(), 4u);
  tuned.set_max_size(3);
  EXPECT_EQ(tuned.size(), 3u);
}

TEST(BatchPolicy, LateIsWhatTookLongerThanTheGoal) {
  const BatchPolicy policy({.latency_goal = milliseconds(10)});
  EXPECT_FALSE(policy.late(milliseconds(10)));
  EXPECT_TRUE(policy.late(milliseconds(11)));
  EXPECT_FALSE(BatchPolicy({}).late(std::chrono::hours(1)));
}

}  // namespace
}  // namespace weft::rpc_internal
