#include "weft/base/spin_policy.h"

#include <gtest/gtest.h>

namespace weft {
namespace {

using std::chrono::microseconds;
using std::chrono::milliseconds;

constexpr microseconds kLimit{100};
constexpr microseconds kQuick{50};
constexpr milliseconds kSlow{5};

void wait_often(SpinPolicy& policy, int times, SpinPolicy::Nanoseconds time) {
  for (int i = 0; i < times; ++i) policy.waited(time);
}

TEST(SpinPolicyTest, SleepsUntilMessagesComeQuickly) {
  SpinPolicy policy(kLimit);
  EXPECT_FALSE(policy.worth_while());
  policy.waited(kQuick);
  EXPECT_TRUE(policy.worth_while());
}

TEST(SpinPolicyTest, CountsWaitsThatSpinningWouldHaveMadeShort) {
  SpinPolicy policy(kLimit);
  policy.waited(2 * kLimit);
  EXPECT_TRUE(policy.worth_while());
}

TEST(SpinPolicyTest, GivesUpAfterAFewSlowMessages) {
  SpinPolicy policy(kLimit);
  wait_often(policy, 1000, kQuick);
  int spun = 0;
  for (int i = 0; i < 100; ++i) {
    spun += policy.worth_while();
    policy.waited(kSlow);
  }
  EXPECT_EQ(spun, 8);
}

TEST(SpinPolicyTest, TradesOneSlowMessageForTwoQuickOnes) {
  SpinPolicy policy(kLimit);
  // Bursts of two messages every 5 ms: the wait in the burst is not worth those between bursts.
  int spun = 0;
  for (int i = 0; i < 1000; ++i) {
    spun += policy.worth_while();
    policy.waited(kQuick);
    spun += policy.worth_while();
    policy.waited(kSlow);
  }
  EXPECT_LE(spun, 1);
}

TEST(SpinPolicyTest, DoesNotCountMessagesThatNeededNoWait) {
  SpinPolicy policy(kLimit);
  wait_often(policy, 1000, std::chrono::nanoseconds(500));
  EXPECT_FALSE(policy.worth_while());
}

TEST(SpinPolicyTest, WaitsLongerEachTimeItIsDisturbed) {
  SpinPolicy policy(kLimit);
  int last = 0;
  for (int round = 0; round < 12; ++round) {
    while (!policy.worth_while()) policy.waited(kQuick);
    policy.disturbed();
    int needed = 0;
    for (; !policy.worth_while(); ++needed) policy.waited(kQuick);
    EXPECT_TRUE(needed >= 2 * last - 1 || needed > 4096) << needed << " after " << last;
    EXPECT_LE(needed, 4097);
    last = needed;
  }
}

TEST(SpinPolicyTest, SlowMessagesDoNotShortenTheWaitAfterADisturbance) {
  SpinPolicy policy(kLimit);
  for (int i = 0; i < 5; ++i) policy.disturbed();
  wait_often(policy, 100, kSlow);
  wait_often(policy, 100, kQuick);
  EXPECT_FALSE(policy.worth_while());
}

TEST(SpinPolicyTest, ForgetsDisturbancesOnceSpinningWorksAgain) {
  SpinPolicy policy(kLimit);
  for (int i = 0; i < 5; ++i) policy.disturbed();
  wait_often(policy, 10000, kQuick);
  policy.disturbed();
  int needed = 0;
  for (; !policy.worth_while(); ++needed) policy.waited(kQuick);
  EXPECT_EQ(needed, 33);
}

TEST(SpinPolicyTest, NeverSpinsWithoutALimit) {
  SpinPolicy policy{microseconds(0)};
  wait_often(policy, 1000, kQuick);
  EXPECT_FALSE(policy.worth_while());
}

}  // namespace
}  // namespace weft
