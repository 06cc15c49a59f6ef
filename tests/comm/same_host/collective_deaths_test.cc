// How a rank notices that another rank has died or given up. The test has no clock of its own.
#include <chrono>
#include <cstring>
#include <string>
#include <vector>

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "weft/comm/same_host/collective_group.h"
#include "weft/tests/comm/operations.h"
#include "weft/tests/comm/ranks.h"

namespace weft::comm_internal {
namespace {

using std::chrono::milliseconds;
using std::chrono::seconds;
using testing::barrier;
using ::testing::HasSubstr;
using testing::in_time;
using testing::message;
using WorkPtr = std::shared_ptr<CollectiveGroup::Work>;
using Clock = std::chrono::steady_clock;

// Rank 0 of three is a real group. The test writes the messages of the other two ranks itself.
class DeathsTest : public ::testing::Test {
 protected:
  CollectiveGroup& group() { return group_; }
  Channels& channels(int rank) { return channels_[static_cast<size_t>(rank - 1)]; }

  void send_from(int rank, Channels::Message message) { channels(rank).send(std::move(message)); }
  // Closes the rank's sockets without a word: that is what the others see of a killed process.
  void die(int rank) { meshes_[rank]->leave(); }
  void give_up(int rank, const std::string& reason) {
    ControlBlock& block = meshes_[rank]->mine();
    std::memcpy(block.failure, reason.data(), reason.size());
    block.failed.value.store(1);
  }

  // Waits until rank 0 has checked the other ranks at least once since this call began.
  void wait_for_a_check(const WorkPtr& work) {
    const uint64_t before = group_.counts().checked;
    while (!work->done() && group_.counts().checked == before) {
      (void)group_.wait(work, Clock::now() + milliseconds(1));
    }
  }

  // A receive from any rank that takes over a message of which rank 1 has sent only a part.
  WorkPtr take_over(std::vector<double>& out, std::vector<double>& in) {
    send_from(1, message(0, 1, out));
    // While rank 0 waits, it reads the messages of all ranks. It keeps those for which it has no
    // receive.
    std::vector<double> other = {1.0};
    send_from(2, message(0, 9, other));
    const WorkPtr first = group_.receive(message(2, 9, other), in_time());
    EXPECT_EQ(group_.wait(first, in_time()), absl::OkStatus());
    return group_.receive(message(Channels::kAnyone, 1, in), in_time());
  }

 private:
  const testing::Meshes meshes_ = testing::connected(3);
  Channels channels_[2] = {Channels(*meshes_[1]), Channels(*meshes_[2])};
  CollectiveGroup group_{meshes_[0], {}};
};

TEST_F(DeathsTest, AReceiveFromAnyoneThatTookOverAMessageOutlivesOtherRanks) {
  std::vector<double> out = testing::numbers(1, 1'000'000), in(out.size());
  const WorkPtr work = take_over(out, in);
  die(2);
  wait_for_a_check(work);
  ASSERT_FALSE(work->done()) << work->status();
  while (!work->done()) {
    ASSERT_TRUE(channels(1).advance().ok());
    group().poll();
  }
  EXPECT_EQ(work->status(), absl::OkStatus());
  EXPECT_EQ(work->peer(), 1);
  EXPECT_EQ(in, out);
}

TEST_F(DeathsTest, AReceiveFromAnyoneThatTookOverAMessageEndsWhenItsSenderDies) {
  std::vector<double> out(1'000'000), in(out.size());
  const WorkPtr work = take_over(out, in);
  die(1);
  wait_for_a_check(work);
  ASSERT_TRUE(work->done());
  EXPECT_TRUE(absl::IsUnavailable(work->status())) << work->status();
  EXPECT_THAT(std::string(work->status().message()), HasSubstr("from rank 1 (tag 1): rank 1 "));
}

TEST_F(DeathsTest, AReceiveFromAnyoneThatTookOverAMessageEndsWhenItsSenderGivesUp) {
  std::vector<double> out(1'000'000), in(out.size());
  const WorkPtr work = take_over(out, in);
  give_up(1, "it had enough");
  wait_for_a_check(work);
  ASSERT_TRUE(work->done());
  EXPECT_TRUE(absl::IsUnavailable(work->status())) << work->status();
  EXPECT_THAT(std::string(work->status().message()),
              HasSubstr("from rank 1 (tag 1): rank 1 has given up: it had enough"));
}

TEST_F(DeathsTest, AReceiveThatTakesOverAMessageOfAnotherLengthSaysSo) {
  std::vector<double> out(1'000'000), in(10);
  const WorkPtr work = take_over(out, in);
  ASSERT_TRUE(work->done());
  EXPECT_THAT(std::string(work->status().message()),
              HasSubstr("rank 1 sent 8000000 bytes to rank 0 (tag 1), whose receive takes 80"));
}

// ---- The first check after a death is enough.

TEST_F(DeathsTest, TheFirstCheckAfterADeathEndsACollective) {
  const WorkPtr work = group().start(barrier(), in_time());
  wait_for_a_check(work);
  ASSERT_FALSE(work->done());
  die(2);
  wait_for_a_check(work);
  ASSERT_TRUE(work->done());
  EXPECT_THAT(std::string(work->status().message()), HasSubstr("rank 2 "));
  EXPECT_THAT(std::string(work->status().message()), HasSubstr(" has died"));
}

TEST_F(DeathsTest, TheFirstCheckAfterADeathEndsASend) {
  std::vector<double> out(1'000'000);
  const WorkPtr work = group().send(message(2, 1, out), in_time());
  wait_for_a_check(work);
  ASSERT_FALSE(work->done());
  die(2);
  wait_for_a_check(work);
  ASSERT_TRUE(work->done());
  EXPECT_THAT(std::string(work->status().message()), HasSubstr("to rank 2 (tag 1): rank 2 "));
}

TEST_F(DeathsTest, TheFirstCheckAfterADeathEndsAReceive) {
  std::vector<double> in(10);
  const WorkPtr work = group().receive(message(2, 1, in), in_time());
  wait_for_a_check(work);
  ASSERT_FALSE(work->done());
  die(2);
  wait_for_a_check(work);
  ASSERT_TRUE(work->done());
  EXPECT_THAT(std::string(work->status().message()), HasSubstr("from rank 2 (tag 1): rank 2 "));
}

TEST_F(DeathsTest, TheFirstCheckAfterADeathEndsAReceiveFromAnyone) {
  std::vector<double> in(10);
  const WorkPtr work = group().receive(message(Channels::kAnyone, 1, in), in_time());
  wait_for_a_check(work);
  ASSERT_FALSE(work->done());
  die(2);
  wait_for_a_check(work);
  ASSERT_TRUE(work->done());
  EXPECT_THAT(std::string(work->status().message()), HasSubstr("from any rank (tag 1): rank 2 "));
}

TEST_F(DeathsTest, ADeathOfWhomNobodyWaitsForEndsNothing) {
  std::vector<double> in(10);
  const WorkPtr work = group().receive(message(1, 1, in), in_time());
  die(2);
  wait_for_a_check(work);
  EXPECT_FALSE(work->done()) << work->status();
}

// ---- A check comes with every tick.

TEST(TicksTest, ComeEveryTwentyMillisecondsUnlessTheOptionsSayOtherwise) {
  EXPECT_EQ(CollectiveGroup::Options().tick, milliseconds(20));
}

// No rank wakes the sleeper, and the operation has a minute left.
TEST(TicksTest, ASleepEndsWithItsTickAndThenTheOthersAreChecked) {
  CollectiveGroup::Options options;
  options.tick = milliseconds(1);
  const testing::Meshes meshes = testing::connected(2);
  CollectiveGroup group(meshes[0], options);
  const WorkPtr work = group.start(barrier(), in_time());
  std::thread waits([&] { (void)group.wait(work, in_time()); });
  const auto deadline = Clock::now() + seconds(30);
  while (group.counts().ticked < 5 && Clock::now() < deadline) std::this_thread::yield();
  const CollectiveGroup::Counts counts = group.counts();
  EXPECT_GE(counts.ticked, 5u);
  EXPECT_GE(counts.checked + 1, counts.ticked);  // the last check may still be running
  EXPECT_FALSE(work->done());
  meshes[1]->leave();
  waits.join();
  EXPECT_TRUE(absl::IsUnavailable(work->status())) << work->status();
}

// A lost wake-up would show as a sleep that its tick ended. These ticks are longer than any pause
// of a busy machine.
TEST(TicksTest, NoneEndsASleepWhileTheOthersMove) {
  constexpr int kRounds = 3'000;
  CollectiveGroup::Options options;
  options.tick = seconds(30);
  options.spin = seconds(0);  // it sleeps each time
  testing::Ranks group(2, options);
  group.each([&](int rank) {
    std::vector<double> ball = {0.0};
    for (int round = 0; round < kRounds; ++round) {
      const bool mine = round % 2 == rank;
      const WorkPtr work = mine ? group[rank].send(message(1 - rank, 3, ball), in_time())
                                : group[rank].receive(message(1 - rank, 3, ball), in_time());
      ASSERT_EQ(group[rank].wait(work, in_time()), absl::OkStatus());
      if (mine) ball[0] += 1;
    }
    for (int round = 0; round < kRounds; ++round) {
      ASSERT_EQ(testing::run(group[rank], barrier()), absl::OkStatus());
    }
  });
  for (int rank = 0; rank < 2; ++rank) {
    EXPECT_EQ(group[rank].counts().ticked, 0u);
    EXPECT_GT(group[rank].counts().slept, 100u);
  }
}

}  // namespace
}  // namespace weft::comm_internal
