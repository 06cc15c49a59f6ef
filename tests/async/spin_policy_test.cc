#include "weft/async/spin_policy.h"

#include <chrono>
#include <thread>

#include <gtest/gtest.h>

#include "weft/async/spinner.h"

namespace weft {
namespace {

using std::chrono::microseconds;
using std::chrono::milliseconds;

constexpr microseconds kLimit{100};
constexpr microseconds kQuick{50};
constexpr microseconds kJustTooSlow{150};
constexpr milliseconds kSlow{5};

// Does what GrpcCompletions does for one message that comes after `time`. Returns true if it looked
// for the message before it slept.
bool wait(SpinPolicy& policy, SpinPolicy::Nanoseconds time) {
  if (!policy.worth_while()) {
    policy.slept(time);
    return false;
  }
  if (time < policy.limit()) {
    policy.found(time);
  } else {
    policy.in_vain();
  }
  return true;
}

int looks(SpinPolicy& policy, int times, SpinPolicy::Nanoseconds time) {
  int looks = 0;
  for (int i = 0; i < times; ++i) looks += wait(policy, time);
  return looks;
}

// Counts the quick messages for which it sleeps until it looks again.
int sleeps(SpinPolicy& policy) {
  int sleeps = 0;
  for (; !policy.worth_while(); ++sleeps) policy.slept(kQuick);
  return sleeps;
}

TEST(SpinPolicyTest, SleepsUntilMessagesComeQuickly) {
  SpinPolicy policy(kLimit);
  EXPECT_FALSE(wait(policy, kSlow));
  EXPECT_EQ(sleeps(policy), 3);
  EXPECT_EQ(looks(policy, 1000, kQuick), 1000);
}

TEST(SpinPolicyTest, TriesWhereTwoThatSleepTakeUpToTwiceTheLimit) {
  SpinPolicy policy(kLimit);
  policy.slept(2 * kLimit);
  EXPECT_TRUE(policy.worth_while());
}

TEST(SpinPolicyTest, GivesUpAfterAFewSlowMessages) {
  SpinPolicy policy(kLimit);
  looks(policy, 1000, kQuick);
  EXPECT_EQ(looks(policy, 1000, kSlow), 4);
}

TEST(SpinPolicyTest, HardlyLooksForMessagesThatAlwaysComeTooLate) {
  SpinPolicy policy(kLimit);
  EXPECT_LE(looks(policy, 100'000, kJustTooSlow), 40);
}

TEST(SpinPolicyTest, BurstsAreNotWorthTheWaitsBetweenThem) {
  SpinPolicy policy(kLimit);
  int between = 0;
  for (int burst = 0; burst < 1000; ++burst) {
    for (int i = 0; i < 3; ++i) wait(policy, kQuick);
    between += wait(policy, kSlow);
  }
  EXPECT_LE(between, 340) << "at most every third time";
}

TEST(SpinPolicyTest, DoesNotCountMessagesThatNeededNoWait) {
  SpinPolicy policy(kLimit);
  EXPECT_EQ(looks(policy, 1000, std::chrono::nanoseconds(500)), 0);
}

TEST(SpinPolicyTest, SleepsTwiceAsLongEachTimeItIsDisturbed) {
  SpinPolicy policy(kLimit);
  for (const int expected : {33, 65, 129, 257, 513, 1025, 2049, 4097, 4097, 4097}) {
    policy.disturbed();
    EXPECT_EQ(sleeps(policy), expected);
  }
}

TEST(SpinPolicyTest, SlowMessagesDoNotShortenTheSleepAfterADisturbance) {
  SpinPolicy policy(kLimit);
  for (int i = 0; i < 5; ++i) policy.disturbed();
  EXPECT_EQ(looks(policy, 100, kSlow), 0);
  EXPECT_GE(sleeps(policy), 16 * 32);
}

TEST(SpinPolicyTest, ForgetsDisturbancesOnceSpinningWorksAgain) {
  SpinPolicy policy(kLimit);
  for (int i = 0; i < 5; ++i) policy.disturbed();
  looks(policy, 10'000, kQuick);
  policy.disturbed();
  EXPECT_EQ(sleeps(policy), 33);
}

TEST(SpinPolicyTest, NeverSpinsWithoutALimit) {
  SpinPolicy policy{microseconds(0)};
  EXPECT_EQ(looks(policy, 1000, kQuick), 0);
}

TEST(SpinnerTest, ASpinThatIsInVainSleepsAtOnceAndTeachesNothing) {
  Spinner spinner(std::chrono::hours(1));
  const auto found = [] { return true; };
  const auto short_sleep = [] { std::this_thread::sleep_for(std::chrono::microseconds(10)); };
  while (spinner.spins() == 0) spinner.wait(found, short_sleep);
  for (int i = 1; i <= 100; ++i) {
    int sleeps = 0;
    spinner.wait([] { return false; }, [&] { ++sleeps; }, [] { return true; });
    EXPECT_EQ(sleeps, 1);
  }
  EXPECT_EQ(spinner.spins(), 101u);
}

}  // namespace
}  // namespace weft
