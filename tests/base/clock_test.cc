#include "weft/base/clock.h"

#include <vector>

#include <gtest/gtest.h>

#include "weft/async/future.h"

namespace weft {
namespace {

using std::chrono::hours;
using std::chrono::milliseconds;
using std::chrono::seconds;

TEST(TimeoutTest, ZeroAndInfiniteMeanWithoutLimit) {
  const TimePoint now = TimePoint() + hours(1);
  for (const Timeout& timeout :
       {Timeout(seconds(0)), Timeout(absl::ZeroDuration()), Timeout(absl::InfiniteDuration()),
        Timeout(hours(24 * 365 * 200)), Timeout()}) {
    EXPECT_TRUE(timeout.infinite());
    EXPECT_EQ(timeout.deadline_from(now), kNever);
  }
  EXPECT_FALSE(Timeout().is_set());
  EXPECT_TRUE(Timeout(seconds(0)).is_set());
}

TEST(TimeoutTest, AnythingAboveZeroIsALimitHoweverShort) {
  EXPECT_EQ(Timeout(absl::Nanoseconds(1) / 4).limit(), Nanoseconds(1));
  EXPECT_EQ(Timeout(milliseconds(5)).limit(), milliseconds(5));
  EXPECT_EQ(Timeout(std::chrono::duration<double>(0.5)).limit(), milliseconds(500));
  EXPECT_EQ(Timeout(std::chrono::days(2)).limit(), hours(48));
  // A negative time means "already late"; it must not become "no limit".
  EXPECT_EQ(Timeout(seconds(-3)).limit(), Nanoseconds(1));
  EXPECT_EQ(Timeout(-absl::InfiniteDuration()).limit(), Nanoseconds(1));
}

TEST(TimeoutTest, DeadlinesNeverOverflow) {
  EXPECT_EQ(Timeout(hours(1)).deadline_from(kNever - seconds(1)), kNever);
  const TimePoint now = TimePoint() + hours(1);
  EXPECT_EQ(Timeout(hours(1)).deadline_from(now), now + hours(1));
}

TEST(TimeoutTest, TheFallbackCountsOnlyWhenUnset) {
  EXPECT_EQ(Timeout().or_else(seconds(2)).limit(), seconds(2));
  EXPECT_EQ(Timeout(seconds(1)).or_else(seconds(2)).limit(), seconds(1));
}

// The clock's thread sleeps until a timer in an hour when an earlier timer comes. Without a wake-up
// the earlier timer would run an hour late.
TEST(SystemClockTest, AnEarlierTimerWakesTheThread) {
  SystemClock clock;
  clock.call_at(clock.now() + hours(1), [] {});
  for (int i = 0; i < 5; ++i) {
    Promise<TimePoint> ran;
    Future<TimePoint> future = ran.future();
    const TimePoint when = clock.now() + milliseconds(5);
    clock.call_at(when, [&] { ran.set(clock.now()); });
    ASSERT_TRUE(future.wait_for(seconds(30)));
    EXPECT_GE(future.wait(), when);
  }
}

TEST(SystemClockTest, TimersRunInOrderOfTheirTimeThenOfTheirMaking) {
  SystemClock clock;
  std::vector<int> order;  // used by the clock's thread only
  Promise<void> last;
  Future<void> done = last.future();
  const TimePoint start = clock.now() + milliseconds(20);
  clock.call_at(start + milliseconds(2), [&] { order.push_back(3); });
  clock.call_at(start, [&] { order.push_back(1); });
  clock.call_at(start, [&] { order.push_back(2); });
  clock.call_at(start + milliseconds(4), [&] { last.set_value(); });
  ASSERT_TRUE(done.wait_for(seconds(30)));
  EXPECT_EQ(order, (std::vector<int>{1, 2, 3}));
}

TEST(SystemClockTest, ACancelledTimerNeverRunsAndCancelSaysWhetherItDid) {
  SystemClock clock;
  const auto owned = std::make_shared<int>(1);
  std::atomic<bool> ran{false};
  const TimerId far = clock.call_at(clock.now() + milliseconds(30), [&, owned] { ran = true; });
  EXPECT_TRUE(clock.cancel(far));
  EXPECT_EQ(owned.use_count(), 1);
  EXPECT_FALSE(clock.cancel(far));
  Promise<void> later;
  Future<void> passed = later.future();
  const TimerId done = clock.call_at(clock.now() + milliseconds(40), [&] { later.set_value(); });
  ASSERT_TRUE(passed.wait_for(seconds(30)));
  EXPECT_FALSE(ran);
  EXPECT_FALSE(clock.cancel(done));
}

TEST(SystemClockTest, ItsEndDropsWhatIsNotDue) {
  const auto owned = std::make_shared<int>(1);
  {
    SystemClock clock;
    clock.call_at(clock.now() + hours(1), [owned] {});
  }
  EXPECT_EQ(owned.use_count(), 1);
}

TEST(ManualClockTest, StandsStillUntilTold) {
  ManualClock clock;
  const TimePoint start = clock.now();
  EXPECT_EQ(clock.now(), start);
  EXPECT_EQ(clock.next_timer(), kNever);
  int runs = 0;
  clock.call_at(start + seconds(5), [&] { ++runs; });
  EXPECT_EQ(clock.next_timer(), start + seconds(5));
  clock.advance(seconds(4));
  EXPECT_EQ(runs, 0);
  EXPECT_EQ(clock.now(), start + seconds(4));
  clock.advance(seconds(1));
  EXPECT_EQ(runs, 1);
}

TEST(ManualClockTest, TimersRunInOrderEachAtItsOwnTime) {
  ManualClock clock;
  const TimePoint start = clock.now();
  std::vector<std::pair<int, Nanoseconds>> order;
  auto note = [&](int which) {
    return [&order, &clock, start, which] { order.emplace_back(which, clock.now() - start); };
  };
  clock.call_at(start + seconds(3), note(3));
  clock.call_at(start + seconds(1), [&, first = note(1)] {
    first();
    // A timer that a timer makes runs within the same advance(), at its own time.
    clock.call_at(start + seconds(2), note(2));
    clock.call_at(start + seconds(100), note(100));
  });
  const TimerId dropped = clock.call_at(start + seconds(2), note(-1));
  EXPECT_TRUE(clock.cancel(dropped));
  EXPECT_FALSE(clock.cancel(dropped));
  clock.call_at(start + seconds(3), note(4));
  clock.advance(seconds(10));
  const std::vector<std::pair<int, Nanoseconds>> wanted = {
      {1, seconds(1)}, {2, seconds(2)}, {3, seconds(3)}, {4, seconds(3)}};
  EXPECT_EQ(order, wanted);
  EXPECT_EQ(clock.now(), start + seconds(10));
}

}  // namespace
}  // namespace weft
