// When the phases of a shutdown complete.
//
// No phase completes before the last message has arrived, also when workers die. At the timeout the
// phases complete too, and the error names the workers that are still at work. Restarted workers
// are in quiescence_restarts_test.
#include <deque>
#include <random>
#include <string>
#include <utility>

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "weft/tests/rpc/membership/quiescence_group.h"

namespace weft {
namespace {

using ::testing::ElementsAre;
using testing::id;
using ::testing::Pair;
using ::testing::UnorderedElementsAre;
using namespace std::chrono_literals;
using Group = testing::QuiescenceGroup;
using Stage = Group::Stage;

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
  group.deliver_all();
  group.busy(2, "sings");
  group.settle({0, 1});
  for (uint32_t i = 0; i < 3; ++i) {
    EXPECT_EQ(group.stage(i), Stage::kEnded) << i;
    EXPECT_TRUE(group[i].timed_out()) << i;
    EXPECT_THAT(group.at_work(i), ElementsAre(Pair(id(2), "sings"))) << i;
  }
}

// Worker 1 was idle, and had reported so, before worker 0's call came. So its last report is no
// reason to leave it out. It is not enough to name worker 0, which waits for worker 1.
TEST(QuiescenceCoreTest, TheTimeoutNamesAWorkerWhoseWorkBeganAfterItsReport) {
  for (const bool leader_works : {false, true}) {
    const uint32_t caller = leader_works ? 1 : 0, works = leader_works ? 0 : 1;
    Group group(3);
    for (uint32_t i = 0; i < 3; ++i) group.enter(i, 1s);
    group.deliver_all();
    for (uint32_t i : {works, 2u}) group.idle(i);
    group.deliver_all();
    group.count_sent(caller, works);
    group.count_received(caller, works);
    group.advance(1s);
    for (uint32_t i = 0; i < 3; ++i) group.tick(i);
    group.deliver_all();
    EXPECT_FALSE(group[2].timed_out()) << "nobody has said yet what it is at";
    group.busy(works, "serves 'f'");
    group.busy(caller, "waits for 'f'");
    group.idle(2);
    group.deliver_all();
    for (uint32_t i = 0; i < 3; ++i) {
      EXPECT_TRUE(group[i].timed_out()) << i;
      EXPECT_THAT(group.at_work(i), UnorderedElementsAre(Pair(id(works), "serves 'f'"),
                                                         Pair(id(caller), "waits for 'f'")))
          << i;
    }
  }
}

// An idle worker's report that crosses the question is older than the question, so it is no answer.
TEST(QuiescenceCoreTest, OnlyWhatFollowsTheQuestionAnswersIt) {
  Group group(2);
  for (uint32_t i = 0; i < 2; ++i) group.enter(i, 1s);
  group.deliver_all();
  group.advance(1s);
  group.idle(1);
  group.tick(0);
  group.busy(0, "waits for 'f'");
  group.deliver_one();  // the report
  EXPECT_EQ(group.stage(0), Stage::kCalls);
  group.deliver_all();
  group.busy(1, "serves 'f'");
  group.deliver_all();
  EXPECT_THAT(group.at_work(0),
              ElementsAre(Pair(id(0), "waits for 'f'"), Pair(id(1), "serves 'f'")));
}

TEST(QuiescenceCoreTest, AWorkerThatDoesNotSayWhatItIsAtIsNamedSoonAfterTheDeadline) {
  Group group(3);
  for (uint32_t i = 0; i < 3; ++i) group.enter(i, 1s);
  group.settle({0, 2});
  group.advance(1s);
  group.tick(0);
  group.settle({0, 2});
  EXPECT_EQ(group.stage(0), Stage::kCalls);
  group.advance(250ms);
  group.tick(0);
  EXPECT_EQ(group.stage(0), Stage::kEnded);
  EXPECT_THAT(group.at_work(0), ElementsAre(Pair(id(1), "does not say what it is at")));
}

TEST(QuiescenceCoreTest, TheTimeoutNamesTheSenderOfAMessageUnderWayIfAllAreIdle) {
  Group group(3);
  for (uint32_t i = 0; i < 3; ++i) group.enter(i, 1s);
  group.count_sent(1, 2);
  group.settle({0, 1, 2});
  group.advance(1s);
  group.tick(0);
  group.settle({0, 1, 2});
  const std::string lost = "is idle, but messages from or to it are under way";
  for (uint32_t i = 0; i < 3; ++i) {
    EXPECT_THAT(group.at_work(i), ElementsAre(Pair(id(1), lost))) << i;
  }
}

// The leader that asked has died. The next leader asks anew, and the answer to the first one
// counts.
TEST(QuiescenceCoreTest, TheNextLeaderLearnsWhoIsAtWorkToo) {
  Group group(3);
  for (uint32_t i = 0; i < 3; ++i) group.enter(i, 1s);
  group.settle({1});
  group.advance(1s);
  group.tick(0);
  group.deliver_all();
  group.kill(0);
  group.busy(2, "serves 'f'");
  group.idle(1);
  group.deliver_all();
  for (uint32_t i : {1, 2})
    EXPECT_THAT(group.at_work(i), ElementsAre(Pair(id(2), "serves 'f'"))) << i;
}

TEST(QuiescenceCoreTest, AnUnansweringLeaderDoesNotHoldUpTheTimeout) {
  Group group(2);
  group.enter(0, 1s);
  group.enter(1, 1s);
  group.settle({1});
  group.advance(1s);
  group.tick(1);
  EXPECT_EQ(group.stage(1), Stage::kCalls);  // the leader knows more, so it gets a moment
  group.advance(1s);
  group.tick(1);
  EXPECT_EQ(group.stage(1), Stage::kEnded);
  EXPECT_THAT(group.at_work(1), ElementsAre(Pair(id(0), "does not answer")));
}

TEST(QuiescenceCoreTest, ADeadWorkerIsNotWaitedFor) {
  Group group(3);
  group.enter(0);
  group.enter(2);
  group.count_sent(1, 2);  // this message never arrives
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
  group.deliver_all();
  group.idle(2);  // it still counts worker 1 among the live ones
  group.deliver_all();
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

// Whatever a leader managed to send before it died, the rest complete the shutdown together.
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

// Messages wake workers that had reported. No worker may leave phase 1 while a message is in
// flight.
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
