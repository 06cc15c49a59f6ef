#include "weft/shm/wait_word.h"

#include <chrono>
#include <new>
#include <thread>

#include <gtest/gtest.h>

#include "weft/shm/sealed_memory.h"

namespace weft {
namespace {

using std::chrono::milliseconds;
using std::chrono::seconds;
using SteadyClock = std::chrono::steady_clock;

// Two mappings of the same word, as two processes have them.
class WaitWordTest : public testing::Test {
 protected:
  WaitWordTest() {
    absl::StatusOr<SealedMemory> memory = SealedMemory::create("weft-test", sizeof(WaitWord));
    EXPECT_TRUE(memory.ok()) << memory.status();
    mine_ = *std::move(memory);
    absl::StatusOr<SealedMemory> other =
        SealedMemory::adopt(FileDescriptor(::dup(mine_.descriptor())), mine_.size());
    EXPECT_TRUE(other.ok()) << other.status();
    theirs_ = *std::move(other);
  }
  static WaitWord& word(const SealedMemory& memory) {
    return *reinterpret_cast<WaitWord*>(memory.data());
  }
  WaitWord& mine() { return word(mine_); }
  WaitWord& theirs() { return word(theirs_); }

 private:
  SealedMemory mine_;
  SealedMemory theirs_;
};

// Waits for a number and notices a lost wake-up: then the sleep runs into its deadline although the
// number has come.
void await(WaitWord& word, uint32_t number) {
  const auto deadline = SteadyClock::now() + seconds(30);
  for (uint32_t seen = word.load(); seen != number; seen = word.load()) {
    ASSERT_TRUE(word.sleep(seen, deadline)) << "nobody woke it; it was " << seen << ", now it is "
                                            << word.load() << " and should be " << number;
  }
}

TEST_F(WaitWordTest, StartsAtZeroWithNobodyAsleep) {
  EXPECT_EQ(mine().load(), 0u);
  EXPECT_EQ(mine().sleepers.load(), 0u);
}

TEST_F(WaitWordTest, IsSeenThroughTheOtherMapping) {
  mine().move_to(7);
  EXPECT_EQ(theirs().load(), 7u);
  EXPECT_EQ(theirs().advance(), 8u);
  EXPECT_EQ(mine().load(), 8u);
}

TEST_F(WaitWordTest, DoesNotSleepOnANumberThatHasGone) {
  mine().move_to(1);
  EXPECT_TRUE(theirs().sleep(0, SteadyClock::now() + seconds(30)));
}

TEST_F(WaitWordTest, SleepsNoLongerThanAllowed) {
  EXPECT_FALSE(theirs().sleep(0, SteadyClock::now()));
  EXPECT_FALSE(theirs().sleep(0, SteadyClock::time_point::min()));
  EXPECT_EQ(theirs().sleepers.load(), 0u);
}

TEST_F(WaitWordTest, SleepsAsLongAsNobodyMovesIt) {
  const auto deadline = SteadyClock::now() + milliseconds(20);
  int returns = 1;  // it may return early, but hardly ever does
  while (theirs().sleep(0, deadline)) ASSERT_LT(++returns, 100) << "it does not sleep";
  EXPECT_GE(SteadyClock::now(), deadline);
}

TEST_F(WaitWordTest, WakesThroughTheOtherMapping) {
  std::thread waiter([this] { await(theirs(), 1); });
  while (mine().sleepers.load() == 0) std::this_thread::yield();
  mine().move_to(1);
  waiter.join();
  EXPECT_EQ(mine().sleepers.load(), 0u);
}

TEST_F(WaitWordTest, WakesAllThatSleep) {
  std::thread first([this] { await(theirs(), 1); });
  std::thread second([this] { await(mine(), 1); });
  while (mine().sleepers.load() != 2) std::this_thread::yield();
  mine().advance();
  first.join();
  second.join();
}

TEST_F(WaitWordTest, SleepsWithoutADeadlineUntilItMoves) {
  std::thread waiter([this] {
    while (theirs().load() != 1) EXPECT_TRUE(theirs().sleep(0, SteadyClock::time_point::max()));
  });
  while (mine().sleepers.load() == 0) std::this_thread::yield();
  mine().move_to(1);
  waiter.join();
}

TEST_F(WaitWordTest, WakesOnlyThoseThatSleep) {
  mine().notify();
  EXPECT_EQ(mine().load(), 0u);
  {
    const WaitWord::Sleeper sleeper(theirs());
    mine().notify();
    EXPECT_EQ(mine().load(), 1u);
  }
  mine().notify();
  EXPECT_EQ(mine().load(), 1u);
}

TEST_F(WaitWordTest, AWakeKeepsFromSleepWhoWasAboutToSleep) {
  const WaitWord::Sleeper sleeper(theirs());
  mine().notify();
  EXPECT_TRUE(sleeper.sleep(SteadyClock::now() + seconds(30)));
}

TEST_F(WaitWordTest, AWakeEndsASleep) {
  std::thread waiter([this] {
    const WaitWord::Sleeper sleeper(theirs());
    EXPECT_TRUE(sleeper.sleep(SteadyClock::now() + seconds(30)));
  });
  while (mine().sleepers.load() != 2) std::this_thread::yield();  // the Sleeper, and its sleep
  mine().notify();
  waiter.join();
  EXPECT_EQ(mine().sleepers.load(), 0u);
}

TEST_F(WaitWordTest, LosesNoWakeUp) {
  constexpr uint32_t kRounds = 20'000;
  // Each thread moves the word only to the number for which the other waits.
  std::thread other([this] {
    for (uint32_t i = 1; i < kRounds; i += 2) {
      await(theirs(), i);
      theirs().move_to(i + 1);
    }
  });
  for (uint32_t i = 0; i < kRounds; i += 2) {
    await(mine(), i);
    mine().move_to(i + 1);
  }
  other.join();
  EXPECT_EQ(mine().load(), kRounds);
  EXPECT_EQ(mine().sleepers.load(), 0u);
}

}  // namespace
}  // namespace weft
