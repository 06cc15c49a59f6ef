#include "weft/rpc/transport/internal/heartbeat_routes.h"

#include <algorithm>
#include <array>
#include <random>
#include <utility>
#include <vector>

#include <gtest/gtest.h>

namespace weft::rpc_internal {
namespace {

FrameHeader heartbeat(uint64_t number, bool answer = false) {
  FrameHeader header;
  header.kind = FrameKind::kHeartbeat;
  header.flags = answer ? kFlagAnswer : 0;
  header.call = number;
  return header;
}

StreamSet set_of(std::initializer_list<StreamKind> streams) {
  StreamSet set;
  for (const StreamKind kind : streams) set.set(kind);
  return set;
}

constexpr Nanoseconds kInterval = std::chrono::milliseconds(100);  // between two heartbeats
const StreamSet kAll = set_of({kControlStream, kBulkStream, kHeartbeatStream});

// Two ends of a connection. A hung stream loses what is sent on it.
class HeartbeatRoutesTest : public ::testing::Test {
 protected:
  struct End {
    HeartbeatRoutes routes;
    StreamSet standing = kAll;
    bool sees_hang = false;
    uint64_t answered = 0;  // the newest of its heartbeats that was answered
  };

  void send(End& from, End& to, const FrameHeader& header) {
    const StreamSet streams = from.routes.route(header, from.standing);
    last_ = streams;
    for (const StreamKind kind : {kControlStream, kBulkStream, kHeartbeatStream}) {
      if (!streams[kind] || hung_[kind]) continue;
      if (to.routes.on_read(header, kind, to.standing, now_)) to.sees_hang = true;
      if (is_answer(header)) {
        to.answered = header.call;
      } else {
        send(to, from, heartbeat(header.call, true));
      }
    }
  }
  // Sends the next heartbeat; returns true if it is answered.
  bool heartbeats(End& from, End& to) {
    const uint64_t number = ++number_;
    now_ += kInterval;
    send(from, to, heartbeat(number));
    return from.answered == number;
  }

  End a_, b_;
  StreamSet hung_;
  StreamSet last_;  // the streams of the last frame
  uint64_t number_ = 0;
  TimePoint now_;
};

TEST_F(HeartbeatRoutesTest, HeartbeatsAndAnswersTravelOnTheirOwnStreamAlone) {
  for (int i = 0; i < 100; ++i) {
    EXPECT_TRUE(heartbeats(i % 2 == 0 ? a_ : b_, i % 2 == 0 ? b_ : a_));
    EXPECT_EQ(last_, set_of({kHeartbeatStream}));
  }
}

TEST_F(HeartbeatRoutesTest, WithoutAStreamOfTheirOwnTheyTravelOnTheControlStream) {
  a_.standing = b_.standing = set_of({kControlStream, kBulkStream});
  for (int i = 0; i < 100; ++i) {
    EXPECT_TRUE(heartbeats(a_, b_));
    EXPECT_EQ(last_, set_of({kControlStream}));
  }
  EXPECT_FALSE(a_.sees_hang || b_.sees_hang);
}

TEST_F(HeartbeatRoutesTest, OneStreamThatHangsCostsAtMostOneHeartbeat) {
  for (const StreamSet standing : {kAll, set_of({kControlStream, kBulkStream})}) {
    for (const StreamKind kind : {kControlStream, kBulkStream, kHeartbeatStream}) {
      a_ = b_ = End{{}, standing};
      hung_.reset();
      EXPECT_TRUE(heartbeats(a_, b_));
      hung_.set(kind);
      int lost = 0;
      for (int i = 0; i < 50; ++i) lost += heartbeats(a_, b_) ? 0 : 1;
      EXPECT_LE(lost, 1) << "stream " << kind;
    }
  }
}

// Only one end sends heartbeats, or both do. Each end must learn of the hang, since each has a
// stream to drop.
TEST_F(HeartbeatRoutesTest, BothEndsLearnThatTheHeartbeatStreamHangs) {
  for (const bool both : {false, true}) {
    a_ = b_ = End();
    hung_.reset();
    EXPECT_TRUE(heartbeats(a_, b_));
    hung_.set(kHeartbeatStream);
    int sent = 0;
    while (!(a_.sees_hang && b_.sees_hang) && sent < 100) {
      ++sent;
      (void)heartbeats(a_, b_);
      if (both) (void)heartbeats(b_, a_);
    }
    EXPECT_GE(sent, HeartbeatRoutes::kMostMissed / 4);
    EXPECT_LE(sent, HeartbeatRoutes::kMostMissed + 2);
  }
}

TEST_F(HeartbeatRoutesTest, AnotherStreamThatHangsIsNotTakenForTheirs) {
  for (const StreamKind kind : {kControlStream, kBulkStream}) {
    a_ = b_ = End();
    hung_.reset();
    hung_.set(kind);
    for (int i = 0; i < 100; ++i) EXPECT_TRUE(heartbeats(a_, b_));
    EXPECT_FALSE(a_.sees_hang || b_.sees_hang);
  }
}

// After it stood still, it reads and answers all that it missed, stream by stream in any order.
TEST_F(HeartbeatRoutesTest, AStreamOfAProcessThatStoodStillDoesNotHang) {
  std::array<StreamKind, kStreams> order = {kControlStream, kBulkStream, kHeartbeatStream};
  do {
    a_ = b_ = End();
    std::vector<std::pair<FrameHeader, StreamSet>> missed;
    for (uint64_t number = 1; number <= 100; ++number) {
      missed.emplace_back(heartbeat(number), a_.routes.route(heartbeat(number), kAll));
      now_ += kInterval;
    }
    for (const StreamKind kind : order) {
      now_ += std::chrono::milliseconds(10);
      for (const auto& [header, streams] : missed) {
        if (!streams[kind]) continue;
        EXPECT_FALSE(b_.routes.on_read(header, kind, kAll, now_));
        const FrameHeader answer = heartbeat(header.call, true);
        const StreamSet back = b_.routes.route(answer, kAll);
        EXPECT_EQ(back, set_of({kind}));
        EXPECT_FALSE(a_.routes.on_read(answer, kind, kAll, now_)) << header.call;
      }
    }
  } while (std::next_permutation(order.begin(), order.end()));
}

TEST_F(HeartbeatRoutesTest, ANewStreamIsJudgedAnew) {
  hung_.set(kHeartbeatStream);
  for (int i = 0; i < 50; ++i) (void)heartbeats(a_, b_);
  EXPECT_TRUE(a_.sees_hang);
  for (End* end : {&a_, &b_}) {
    end->routes.restart();
    end->sees_hang = false;
  }
  hung_.reset();
  EXPECT_TRUE(heartbeats(a_, b_));
  EXPECT_EQ(last_, set_of({kHeartbeatStream}));
  EXPECT_FALSE(a_.sees_hang || b_.sees_hang);
}

// Whatever one stream does to each frame, every second heartbeat is answered.
TEST_F(HeartbeatRoutesTest, AStreamThatLosesSomeFramesNeverCostsTwoHeartbeatsInARow) {
  const uint64_t seed = std::random_device()();
  SCOPED_TRACE(::testing::Message() << "seed " << seed);
  std::mt19937_64 random(seed);
  for (int round = 0; round < 200; ++round) {
    a_ = b_ = End();
    const auto kind = static_cast<StreamKind>(random() % kStreams);
    int in_a_row = 0;
    for (int i = 0; i < 50; ++i) {
      hung_.reset();
      hung_[kind] = random() % 2 == 0;
      in_a_row = heartbeats(a_, b_) ? 0 : in_a_row + 1;
      ASSERT_LT(in_a_row, 2);
    }
  }
}

}  // namespace
}  // namespace weft::rpc_internal
