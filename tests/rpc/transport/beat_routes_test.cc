#include "weft/rpc/transport/internal/beat_routes.h"

#include <algorithm>
#include <array>
#include <random>
#include <utility>
#include <vector>

#include <gtest/gtest.h>

namespace weft::rpc_internal {
namespace {

FrameHeader beat(uint64_t number, bool answer = false) {
  FrameHeader header;
  header.kind = FrameKind::kBeat;
  header.flags = answer ? kFlagAnswer : 0;
  header.call = number;
  return header;
}

LaneSet set_of(std::initializer_list<Lane> lanes) {
  LaneSet set;
  for (const Lane lane : lanes) set.set(lane);
  return set;
}

constexpr Nanoseconds kInterval = std::chrono::milliseconds(100);  // of heartbeats
const LaneSet kAll = set_of({kSmallLane, kBulkLane, kBeatsLane});

// Two ends of a connection; a lane that hangs loses what is put on it.
class BeatRoutesTest : public ::testing::Test {
 protected:
  struct End {
    BeatRoutes routes;
    LaneSet standing = kAll;
    bool sees_hang = false;
    uint64_t answered = 0;  // the newest of its heartbeats
  };

  void send(End& from, End& to, const FrameHeader& header) {
    const LaneSet lanes = from.routes.route(header, from.standing);
    last_ = lanes;
    for (const Lane lane : {kSmallLane, kBulkLane, kBeatsLane}) {
      if (!lanes[lane] || hung_[lane]) continue;
      if (to.routes.on_read(header, lane, to.standing, now_)) to.sees_hang = true;
      if (is_answer(header)) {
        to.answered = header.call;
      } else {
        send(to, from, beat(header.call, true));
      }
    }
  }
  // Sends the next heartbeat; true if it is answered.
  bool beats(End& from, End& to) {
    const uint64_t number = ++number_;
    now_ += kInterval;
    send(from, to, beat(number));
    return from.answered == number;
  }

  End a_, b_;
  LaneSet hung_;
  LaneSet last_;  // where the last one went
  uint64_t number_ = 0;
  TimePoint now_;
};

TEST_F(BeatRoutesTest, HeartbeatsAndAnswersTravelOnTheirOwnLaneAlone) {
  for (int i = 0; i < 100; ++i) {
    EXPECT_TRUE(beats(i % 2 == 0 ? a_ : b_, i % 2 == 0 ? b_ : a_));
    EXPECT_EQ(last_, set_of({kBeatsLane}));
  }
}

TEST_F(BeatRoutesTest, WithoutALaneOfTheirOwnTheyTravelOnTheSmallOne) {
  a_.standing = b_.standing = set_of({kSmallLane, kBulkLane});
  for (int i = 0; i < 100; ++i) {
    EXPECT_TRUE(beats(a_, b_));
    EXPECT_EQ(last_, set_of({kSmallLane}));
  }
  EXPECT_FALSE(a_.sees_hang || b_.sees_hang);
}

TEST_F(BeatRoutesTest, OneLaneThatHangsCostsAtMostOneHeartbeat) {
  for (const LaneSet standing : {kAll, set_of({kSmallLane, kBulkLane})}) {
    for (const Lane lane : {kSmallLane, kBulkLane, kBeatsLane}) {
      a_ = b_ = End{{}, standing};
      hung_.reset();
      EXPECT_TRUE(beats(a_, b_));
      hung_.set(lane);
      int lost = 0;
      for (int i = 0; i < 50; ++i) lost += beats(a_, b_) ? 0 : 1;
      EXPECT_LE(lost, 1) << "lane " << lane;
    }
  }
}

// Only one end beats, or both do; each end must learn it, since each has a stream to let go.
TEST_F(BeatRoutesTest, BothEndsLearnThatTheLaneForHeartbeatsHangs) {
  for (const bool both : {false, true}) {
    a_ = b_ = End();
    hung_.reset();
    EXPECT_TRUE(beats(a_, b_));
    hung_.set(kBeatsLane);
    int sent = 0;
    while (!(a_.sees_hang && b_.sees_hang) && sent < 100) {
      ++sent;
      (void)beats(a_, b_);
      if (both) (void)beats(b_, a_);
    }
    EXPECT_GE(sent, BeatRoutes::kMostMissed / 4);
    EXPECT_LE(sent, BeatRoutes::kMostMissed + 2);
  }
}

TEST_F(BeatRoutesTest, AnotherLaneThatHangsIsNotTakenForTheirs) {
  for (const Lane lane : {kSmallLane, kBulkLane}) {
    a_ = b_ = End();
    hung_.reset();
    hung_.set(lane);
    for (int i = 0; i < 100; ++i) EXPECT_TRUE(beats(a_, b_));
    EXPECT_FALSE(a_.sees_hang || b_.sees_hang);
  }
}

// It reads and answers all that it missed, lane by lane in any order.
TEST_F(BeatRoutesTest, ALaneOfAProcessThatStoodStillDoesNotHang) {
  std::array<Lane, kLanes> order = {kSmallLane, kBulkLane, kBeatsLane};
  do {
    a_ = b_ = End();
    std::vector<std::pair<FrameHeader, LaneSet>> missed;
    for (uint64_t number = 1; number <= 100; ++number) {
      missed.emplace_back(beat(number), a_.routes.route(beat(number), kAll));
      now_ += kInterval;
    }
    for (const Lane lane : order) {
      now_ += std::chrono::milliseconds(10);
      for (const auto& [header, lanes] : missed) {
        if (!lanes[lane]) continue;
        EXPECT_FALSE(b_.routes.on_read(header, lane, kAll, now_));
        const FrameHeader answer = beat(header.call, true);
        const LaneSet back = b_.routes.route(answer, kAll);
        EXPECT_EQ(back, set_of({lane}));
        EXPECT_FALSE(a_.routes.on_read(answer, lane, kAll, now_)) << header.call;
      }
    }
  } while (std::next_permutation(order.begin(), order.end()));
}

TEST_F(BeatRoutesTest, ANewLaneIsJudgedAnew) {
  hung_.set(kBeatsLane);
  for (int i = 0; i < 50; ++i) (void)beats(a_, b_);
  EXPECT_TRUE(a_.sees_hang);
  for (End* end : {&a_, &b_}) {
    end->routes.restart();
    end->sees_hang = false;
  }
  hung_.reset();
  EXPECT_TRUE(beats(a_, b_));
  EXPECT_EQ(last_, set_of({kBeatsLane}));
  EXPECT_FALSE(a_.sees_hang || b_.sees_hang);
}

// Whatever one lane does to each frame, every second heartbeat is answered.
TEST_F(BeatRoutesTest, ALaneThatLosesSomeFramesNeverCostsTwoHeartbeatsInARow) {
  const uint64_t seed = std::random_device()();
  SCOPED_TRACE(::testing::Message() << "seed " << seed);
  std::mt19937_64 random(seed);
  for (int round = 0; round < 200; ++round) {
    a_ = b_ = End();
    const auto lane = static_cast<Lane>(random() % kLanes);
    int in_a_row = 0;
    for (int i = 0; i < 50; ++i) {
      hung_.reset();
      hung_[lane] = random() % 2 == 0;
      in_a_row = beats(a_, b_) ? 0 : in_a_row + 1;
      ASSERT_LT(in_a_row, 2);
    }
  }
}

}  // namespace
}  // namespace weft::rpc_internal
