#include "weft/rpc/session/internal/stream_watch.h"

#include <gtest/gtest.h>

namespace weft::rpc_internal {
namespace {

using std::chrono::seconds;

constexpr Nanoseconds kLimit = seconds(30);

class StreamWatchTest : public ::testing::Test {
 protected:
  // Looks once per second until the connection counts as hung, and returns that second. 0: it never
  // does.
  template <class Look>
  int stuck_after(Look look) {
    for (int second = 0; second <= 300; ++second) {
      const auto [oldest, streams] = look(static_cast<uint64_t>(second));
      if (watch_.is_stuck(oldest, streams, start_ + seconds(second), kLimit)) return second;
    }
    return 0;
  }
  using Seen = std::pair<uint64_t, StreamsBytes>;

  const TimePoint start_ = TimePoint() + std::chrono::hours(1);
  StreamWatch watch_;
};

TEST_F(StreamWatchTest, AFrameThatIsNeverAcknowledgedIsStuckAfterTheLimit) {
  EXPECT_EQ(stuck_after([](uint64_t) { return Seen(7, {{100, 100}}); }), 30);
}

TEST_F(StreamWatchTest, WithoutAStreamOnlyTheAcknowledgementCounts) {
  EXPECT_EQ(stuck_after([](uint64_t) { return Seen(7, {}); }), 30);
}

TEST_F(StreamWatchTest, NothingIsStuckWhereNothingWaits) {
  EXPECT_EQ(stuck_after([](uint64_t) { return Seen(0, {{100, 20}}); }), 0);
}

TEST_F(StreamWatchTest, NothingIsStuckWhileAcknowledgementsCome) {
  EXPECT_EQ(stuck_after([](uint64_t now) { return Seen(1 + now / 29, {{100, 100}}); }), 0);
}

TEST_F(StreamWatchTest, AFrameOnAMovingStreamIsNotStuckBeforeItHasLeft) {
  EXPECT_EQ(stuck_after([](uint64_t now) {
              return Seen(7, {{1000, std::min<uint64_t>(10 * now, 1000)}});
            }),
            100 + 30);
}

TEST_F(StreamWatchTest, WhatIsWrittenAfterTheFrameDoesNotHideThatItHangs) {
  EXPECT_EQ(stuck_after([](uint64_t now) {
              return Seen(7, {{100 + 10 * now, 100 + 10 * now}});
            }),
            30);
}

TEST_F(StreamWatchTest, WhatIsQueuedBehindTheFrameDoesNotHideThatItHangs) {
  EXPECT_EQ(stuck_after([](uint64_t now) { return Seen(7, {{100 + 10 * now, 50}}); }), 30);
}

TEST_F(StreamWatchTest, AnotherStreamsTrafficDoesNotHideThatOneHangs) {
  EXPECT_EQ(stuck_after([](uint64_t now) {
              return Seen(7, {{100 + 10 * now, 90 + 10 * now}, {5000, 600}});
            }),
            31);
}

TEST_F(StreamWatchTest, AStreamThatJoinsCountsFromThenOn) {
  EXPECT_EQ(stuck_after([](uint64_t now) {
              return now < 20 ? Seen(7, {{100, 100}}) : Seen(7, {{100, 100}, {50, now}});
            }),
            49 + 31);
}

// All processes of a host were stopped for an hour.
TEST_F(StreamWatchTest, TimeInWhichNobodyLookedDoesNotCount) {
  const TimePoint later = start_ + std::chrono::hours(1);
  EXPECT_FALSE(watch_.is_stuck(7, {{100, 100}}, start_, kLimit));
  EXPECT_FALSE(watch_.is_stuck(7, {{100, 100}}, start_ + seconds(1), kLimit));
  int second = 0;
  while (!watch_.is_stuck(7, {{100, 100}}, later + seconds(second), kLimit)) ++second;
  EXPECT_GE(second, 20);
  EXPECT_LE(second, 30);
}

TEST_F(StreamWatchTest, TheNextFrameHasTheWholeLimit) {
  EXPECT_EQ(stuck_after([](uint64_t now) { return Seen(now < 29 ? 7 : 8, {{100, 100}}); }), 59);
}

}  // namespace
}  // namespace weft::rpc_internal
