#include "weft/rpc/internal/quiescence_core.h"

#include <deque>
#include <random>

#include <gmock/gmock.h>
#include <gtest/gtest.h>

namespace weft {
namespace {

using internal::MembershipMessages;
using internal::PeerTraffic;
using internal::QuiescenceCore;
using Stage = QuiescenceCore::Stage;
using ::testing::ElementsAre;
using namespace std::chrono_literals;

WorkerId id(uint32_t index) { return {index, 1}; }

// Cores joined by wires that keep order, and counters that the test moves.
class Group {
 public:
  explicit Group(uint32_t workers) : traffic_(workers, std::vector<PeerTraffic>(workers)) {
    std::vector<WorkerId> members;
    for (uint32_t i = 0; i < workers; ++i) members.push_back(id(i));
    for (uint32_t i = 0; i < workers; ++i) {
      cores_.emplace_back(id(i), members);
      for (uint32_t j = 0; j < workers; ++j) traffic_[i][j].peer = id(j);
      live_.push_back(true);
    }
  }

  QuiescenceCore& operator[](uint32_t i) { return cores_[i]; }
  Stage stage(uint32_t i) const { return cores_[i].stage(); }
  void advance(Nanoseconds step) { now_ += step; }

  void enter(uint32_t i, Timeout timeout = {}) {
    MembershipMessages out;
    cores_[i].enter(timeout, now_, out);
    send(i, out);
  }
  void drop(uint32_t i) {
    MembershipMessages out;
    cores_[i].references_dropped(now_, out);
    send(i, out);
  }
  void idle(uint32_t i) {
    MembershipMessages out;
    std::vector<PeerTraffic> live;
    for (const PeerTraffic& peer : traffic_[i]) {
      if (live_[peer.peer.index]) live.push_back(peer);
    }
    cores_[i].idle(std::move(live), now_, out);
    send(i, out);
  }
  void tick(uint32_t i) {
    MembershipMessages out;
    cores_[i].tick(now_, out);
    send(i, out);
  }
  void count_sent(uint32_t from, uint32_t to) { ++traffic_[from][to].sent; }
  void count_received(uint32_t from, uint32_t to) { ++traffic_[to][from].received; }
  // What it has sent is lost, all others hear of it.
  void kill(uint32_t dead, bool loses_messages = true) {
    live_[dead] = false;
    if (loses_messages) std::erase_if(wire_, [&](const Sent& s) { return s.from == id(dead); });
    for (uint32_t i = 0; i < cores_.size(); ++i) {
      if (!live_[i]) continue;
      MembershipMessages out;
      cores_[i].gone(id(dead), now_, out);
      send(i, out);
    }
  }

  bool deliver_one() {
    if (wire_.empty()) return false;
    Sent sent = std::move(wire_.front());
    wire_.pop_front();
    if (live_[sent.to.index]) {
      MembershipMessages out;
      cores_[sent.to.index].receive(sent.from, sent.post, now_, out);
      send(sent.to.index, out);
    }
    return true;
  }
  // Messages flow and idle workers say so, until nothing changes any more.
  void settle(const std::vector<uint32_t>& idle_workers) {
    for (int round = 0; round < 6; ++round) {
      while (deliver_one()) {
      }
      for (uint32_t i : idle_workers) idle(i);
    }
    while (deliver_one()) {
    }
  }

 private:
  struct Sent {
    WorkerId from, to;
    wire::MembershipPost post;
  };
  void send(uint32_t from, const MembershipMessages& out) {
    for (const auto& message : out) wire_.push_back({id(from), message.to, message.post});
  }

  std::vector<QuiescenceCore> cores_;
  std::vector<std::vector<PeerTraffic>> traffic_;
  std::vector<bool> live_;
  std::deque<Sent> wire_;
  TimePoint now_ = TimePoint() + std::chrono::hours(1);
};

TEST(QuiescenceCoreTest, AGroupOfOneEndsOnceItIsIdleInBothPhases) {
  Group group(1);
  EXPECT_TRUE(group[0].others_entered());
  group.enter(0);
  EXPECT_EQ(group.stage(0), Stage::kCalls);
  group.idle(0);
  EXPECT_EQ(group.stage(0), Stage::kDropping);
  group.drop(0);
  EXPECT_EQ(group.stage(0), Stage::kMessages);
  group.idle(0);
  EXPECT_EQ(group.stage(0), Stage::kEnded);
  EXPECT_FALSE(group[0].timed_out());
}

TEST(QuiescenceCoreTest, NothingEndsBeforeTheLastLiveWorkerHasEntered) {
  Group group(3);
  group.enter(0);
  group.enter(1);
  group.settle({0, 1});
  EXPECT_EQ(group.stage(0), Stage::kCalls);
  EXPECT_TRUE(group[2].others_entered());
  EXPECT_FALSE(group[0].others_entered());
  group.enter(2);
  group.settle({0, 1, 2});
  for (uint32_t i = 0; i < 3; ++i) EXPECT_EQ(group.stage(i), Stage::kDropping) << i;
}

TEST(QuiescenceCoreTest, AMessageInFlightHoldsThePhase) {
  Group group(2);
  group.enter(0);
  group.enter(1);
  group.count_sent(1, 0);
  group.settle({0, 1});
  EXPECT_EQ(group.stage(0), Stage::kCalls);
  group.count_received(1, 0);
  group.settle({0, 1});
  EXPECT_EQ(group.stage(0), Stage::kDropping);
  EXPECT_EQ(group.stage(1), Stage::kDropping);
}

TEST(QuiescenceCoreTest, ReportsOfTheFirstPhaseSayNothingAboutTheSecond) {
  Group group(2);
  group.enter(0);
  group.enter(1);
  group.settle({0, 1});
  group.drop(0);
  group.settle({0, 1});
  EXPECT_EQ(group.stage(0), Stage::kMessages);
  EXPECT_EQ(group.stage(1), Stage::kDropping);
  group.drop(1);
  group.settle({0, 1});
  EXPECT_EQ(group.stage(0), Stage::kEnded);
  EXPECT_EQ(group.stage(1), Stage::kEnded);
}

TEST(QuiescenceCoreTest, TheClockStartsWhenTheLastHasEnteredAndTheShortestWishHolds) {
  Group group(3);
  group.enter(0, 10s);
  group.enter(1, 2s);
  group.settle({0, 1});
  group.advance(1h);
  group.tick(0);
  EXPECT_EQ(group.stage(0), Stage::kCalls);
  group.enter(2);
  group.settle({0, 1});  // worker 2 is never idle
  group.advance(2s - 1ns);
  group.tick(0);
  EXPECT_EQ(group.stage(0), Stage::kCalls);
  group.advance(1ns);
  group.tick(0);
  group.settle({});
  for (uint32_t i = 0; i < 3; ++i) {
    EXPECT_EQ(group.stage(i), Stage::kEnded) << i;
    EXPECT_TRUE(group[i].timed_out()) << i;
    EXPECT_THAT(group[i].not_quiet(), ElementsAre(id(2))) << i;
  }
}

TEST(QuiescenceCoreTest, AnUnansweringLeaderDoesNotHoldUpTheTimeout) {
  Group group(2);
  group.enter(0, 1s);
  group.enter(1, 1s);
  group.settle({1});
  group.advance(1s);
  group.tick(1);
  EXPECT_EQ(group.stage(1), Stage::kCalls);  // the leader knows more and gets a moment
  group.advance(1s);
  group.tick(1);
  EXPECT_EQ(group.stage(1), Stage::kEnded);
  EXPECT_THAT(group[1].not_quiet(), ElementsAre(id(0)));
}

TEST(QuiescenceCoreTest, ADeadWorkerIsNotWaitedFor) {
  Group group(3);
  group.enter(0);
  group.enter(2);
  group.count_sent(1, 2);  // never arrives
  group.count_sent(0, 1);
  group.settle({0, 2});
  group.kill(1);
  EXPECT_TRUE(group[0].others_entered());
  group.settle({0, 2});
  EXPECT_EQ(group.stage(0), Stage::kDropping);
  EXPECT_EQ(group.stage(2), Stage::kDropping);
}

TEST(QuiescenceCoreTest, AReportFromBeforeADeathDoesNotCount) {
  Group group(3);
  for (uint32_t i = 0; i < 3; ++i) group.enter(i);
  while (group.deliver_one()) {
  }
  group.idle(2);  // still counts worker 1 among the living
  while (group.deliver_one()) {
  }
  group.kill(1);
  group.idle(0);
  EXPECT_EQ(group.stage(0), Stage::kCalls);
  group.settle({0, 2});
  EXPECT_EQ(group.stage(0), Stage::kDropping);
}

TEST(QuiescenceCoreTest, TheNextLeaderCollectsReportsAnew) {
  Group group(3);
  for (uint32_t i = 0; i < 3; ++i) group.enter(i);
  group.settle({1, 2});
  group.kill(0);
  group.settle({1, 2});
  EXPECT_EQ(group.stage(1), Stage::kDropping);
  EXPECT_EQ(group.stage(2), Stage::kDropping);
}

// Whatever a leader managed to say before it died, the rest end together.
TEST(QuiescenceCoreTest, ALeaderMayDieAtAnyStep) {
  const uint32_t seed = std::random_device()();
  SCOPED_TRACE(seed);
  std::mt19937 random(seed);
  for (int run = 0; run < 300; ++run) {
    Group group(4);
    for (uint32_t i = 0; i < 4; ++i) group.enter(i, 1h);
    const auto step = [&] {
      for (uint32_t n = random() % 6; n > 0; --n) group.deliver_one();
      const uint32_t i = random() % 4;
      group.idle(i);
      if (group.stage(i) == Stage::kDropping) group.drop(i);
    };
    for (uint32_t n = random() % 40; n > 0; --n) step();
    group.kill(0, random() % 2 == 0);
    for (uint32_t round = 0; round < 4; ++round) {
      group.settle({1, 2, 3});
      for (uint32_t i = 1; i < 4; ++i) group.drop(i);
    }
    for (uint32_t i = 1; i < 4; ++i) {
      ASSERT_EQ(group.stage(i), Stage::kEnded) << "worker " << i << ", run " << run;
      ASSERT_FALSE(group[i].timed_out());
    }
  }
}

// Messages wake workers that had reported; no worker may leave phase 1 while one is under way.
TEST(QuiescenceCoreTest, NoPhaseEndsWhileWorkIsLeft) {
  const uint32_t seed = std::random_device()();
  SCOPED_TRACE(seed);
  std::mt19937 random(seed);
  for (int run = 0; run < 300; ++run) {
    Group group(4);
    std::deque<std::pair<uint32_t, uint32_t>> work;
    int left = 30;
    const auto send = [&](uint32_t from, uint32_t to) {
      group.count_sent(from, to);
      work.emplace_back(from, to);
      --left;
    };
    send(0, 1);
    send(2, 3);
    for (uint32_t i = 0; i < 4; ++i) group.enter(i);
    while (!work.empty()) {
      for (uint32_t n = random() % 4; n > 0; --n) group.deliver_one();
      group.idle(random() % 4);
      for (uint32_t i = 0; i < 4; ++i) ASSERT_EQ(group.stage(i), Stage::kCalls) << "run " << run;
      if (random() % 2 == 0) {
        std::swap(work.front(), work[random() % work.size()]);
        const auto [from, to] = work.front();
        work.pop_front();
        group.count_received(from, to);
        while (left > 0 && random() % 3 != 0) send(to, random() % 4);
      }
    }
    group.settle({0, 1, 2, 3});
    for (uint32_t i = 0; i < 4; ++i) ASSERT_EQ(group.stage(i), Stage::kDropping) << "run " << run;
  }
}

}  // namespace
}  // namespace weft
