#include "weft/shm/wake_bits.h"

#include <atomic>
#include <chrono>
#include <memory>
#include <new>
#include <random>
#include <thread>
#include <vector>

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "weft/shm/byte_ring.h"
#include "weft/tests/shm/hostile_peer.h"
#include "weft/tests/shm/ring_ends.h"

namespace weft {
namespace {

using namespace ring_test;
using std::chrono::seconds;
using ::testing::ElementsAre;
using SteadyClock = std::chrono::steady_clock;

constexpr WakeBits::Group kReader = WakeBits::Group::kServing;

class WakeBitsTest : public ::testing::Test {
 protected:
  std::vector<size_t> take() {
    std::vector<size_t> slots;
    const bool any = bits_->take_pending([&](size_t slot) { slots.push_back(slot); });
    EXPECT_EQ(any, !slots.empty());
    return slots;
  }
  uint32_t wakes() const { return bits_->word.load(); }

  std::unique_ptr<WakeBits> bits_ = std::make_unique<WakeBits>();
};

TEST_F(WakeBitsTest, AllZerosMeansThatNothingIsPending) {
  EXPECT_FALSE(bits_->any_pending());
  EXPECT_THAT(take(), ElementsAre());
}

TEST_F(WakeBitsTest, ShowsEverySignalledSlotOnce) {
  for (const size_t slot : {size_t{1023}, size_t{0}, size_t{63}, size_t{64}, size_t{0}}) {
    bits_->signal(slot);
    EXPECT_TRUE(bits_->any_pending());
  }
  EXPECT_THAT(take(), ElementsAre(0, 63, 64, 1023));
  EXPECT_FALSE(bits_->any_pending());
  EXPECT_THAT(take(), ElementsAre());
}

TEST_F(WakeBitsTest, EverySlotHasABitOfItsOwn) {
  for (size_t slot = 0; slot < WakeBits::kSlots; ++slot) {
    bits_->signal(slot);
    EXPECT_THAT(take(), ElementsAre(slot));
  }
}

TEST_F(WakeBitsTest, ASignalDuringTheLookIsNotLost) {
  bits_->signal(5);
  bits_->take_pending([&](size_t slot) { bits_->signal(slot); });
  EXPECT_THAT(take(), ElementsAre(5));
}

TEST_F(WakeBitsTest, WakesOnlyAnArmedReaderAndOnlyOnce) {
  bits_->signal(1);
  EXPECT_EQ(wakes(), 0u);
  bits_->arm(kReader);
  bits_->signal(2);
  EXPECT_EQ(wakes(), 1u);
  bits_->signal(3);
  EXPECT_EQ(wakes(), 1u);
  bits_->arm(kReader);
  bits_->disarm();
  bits_->signal(4);
  EXPECT_EQ(wakes(), 1u);
}

TEST_F(WakeBitsTest, DoesNotSleepIfASignalCameAfterItArmed) {
  const uint32_t seen = bits_->arm(kReader);
  bits_->signal(1);
  EXPECT_TRUE(bits_->sleep(seen, SteadyClock::now() + seconds(30), kReader));
}

// A late signal disarms the reader again, so the next one wakes nobody. No test can get between the
// two steps of arm(): their order is checked by tests/models/wake_bits.pml, mutant SEEN_ARMED.
TEST_F(WakeBitsTest, DoesNotSleepIfALateSignalHasDisarmedIt) {
  const uint32_t seen = bits_->arm(kReader);
  EXPECT_EQ(seen, bits_->word.load());
  bits_->armed.exchange(0);  // the late signal, for a bit that is taken
  bits_->word.advance();
  bits_->signal(1);
  EXPECT_TRUE(bits_->sleep(seen, SteadyClock::now() + seconds(30), kReader));
}

TEST_F(WakeBitsTest, ASignalWakesTheReaderThatIsArmedAndNotTheOther) {
  const uint32_t seen = bits_->word.load();
  std::atomic<bool> served{false};
  std::thread serving([&] {
    const auto group = static_cast<uint32_t>(WakeBits::Group::kServing);
    EXPECT_TRUE(bits_->word.sleep(seen, SteadyClock::now() + seconds(30), group));
    served.store(true);
  });
  while (bits_->word.sleepers.load() == 0) std::this_thread::yield();
  std::thread waiting([&] {
    const uint32_t now = bits_->arm(WakeBits::Group::kCaller);
    const auto group = static_cast<uint32_t>(WakeBits::Group::kCaller);
    EXPECT_TRUE(bits_->word.sleep(now, SteadyClock::now() + seconds(30), group));
  });
  while (bits_->word.sleepers.load() < 2) std::this_thread::yield();
  bits_->signal(1);
  waiting.join();
  EXPECT_FALSE(served.load());
  bits_->arm(WakeBits::Group::kServing);
  bits_->signal(2);
  serving.join();
}

TEST_F(WakeBitsTest, ALocalWakeEndsTheNextSleep) {
  const uint32_t seen = bits_->arm(kReader);
  bits_->wake();
  EXPECT_TRUE(bits_->sleep(seen, SteadyClock::now() + seconds(30), kReader));
}

TEST_F(WakeBitsTest, SleepsNoLongerThanUntilTheDeadline) {
  EXPECT_FALSE(bits_->sleep(bits_->arm(kReader), SteadyClock::now(), kReader));
  EXPECT_FALSE(bits_->sleep(bits_->arm(kReader), SteadyClock::time_point::min(), kReader));
}

TEST_F(WakeBitsTest, SleepsNoLongerThanASecondIfAPeerTakesTheWakeAway) {
  const uint32_t seen = bits_->arm(kReader);
  bits_->armed = 0;  // a lie
  bits_->signal(1);
  const SteadyClock::time_point began = SteadyClock::now();
  while (bits_->sleep(seen, SteadyClock::time_point::max(), kReader)) {
  }
  EXPECT_GE(SteadyClock::now() - began, WakeBits::kLongestSleep);
  EXPECT_LT(SteadyClock::now() - began, seconds(20));
  EXPECT_THAT(take(), ElementsAre(1));
}

// ---- Threads

// Reads until `all_read`. Fails if a sleep had to be ended by its time limit.
template <class Drain, class AllRead>
void read_until(WakeBits& bits, Drain drain, AllRead all_read) {
  while (!all_read() && !::testing::Test::HasFailure()) {
    bits.disarm();
    while (bits.take_pending(drain)) {
    }
    if (all_read()) return;
    const uint32_t seen = bits.arm(kReader);
    if (bits.any_pending()) continue;
    const bool woken = bits.sleep(seen, SteadyClock::time_point::max(), kReader);
    EXPECT_TRUE(woken || !bits.any_pending()) << "a wake-up was lost";
  }
}

TEST_F(WakeBitsTest, LosesNoSignalOfManyThreads) {
  constexpr uint64_t kSignals = 5'000;
  constexpr size_t kPeers = 3;
  std::atomic<uint64_t> published[kPeers] = {};
  std::vector<std::thread> peers;
  for (size_t peer = 0; peer < kPeers; ++peer) {
    peers.emplace_back([&, peer] {
      for (uint64_t i = 1; i <= kSignals; ++i) {
        published[peer].store(i, std::memory_order_relaxed);  // the signal publishes it
        bits_->signal(peer * 300);
        if (i % 7 == 0) std::this_thread::yield();
      }
    });
  }
  uint64_t read[kPeers] = {};
  read_until(
      *bits_,
      [&](size_t slot) {
        read[slot / 300] = published[slot / 300].load(std::memory_order_relaxed);
      },
      [&] { return read[0] == kSignals && read[1] == kSignals && read[2] == kSignals; });
  for (std::thread& peer : peers) peer.join();
}

// Two workers, as in the transport: each has wake bits, and a ring goes each way. Both sleep.
TEST_F(WakeBitsTest, TwoWorkersAnswerEachOtherAsleepBetweenRecords) {
  constexpr uint64_t kRounds = 5'000;
  WakeBits& mine = *bits_;
  const auto theirs = std::make_unique<WakeBits>();
  SharedRing there(256);
  SharedRing back(256);
  std::thread other([&] {
    RingReader reader(*there.header, there.data(), kLastKind);
    RingWriter writer(*back.header, back.data());
    uint64_t number = 0;
    read_until(
        *theirs,
        [&](size_t) {
          expect_next(reader, number % 48, number);
          reader.release();
          ASSERT_TRUE(write(writer, number % 48, number));
          ++number;
          mine.signal(9);
        },
        [&] { return number == kRounds; });
  });
  RingWriter writer(*there.header, there.data());
  RingReader reader(*back.header, back.data(), kLastKind);
  uint64_t number = 0;
  const auto send = [&] {
    ASSERT_TRUE(write(writer, number % 48, number));
    theirs->signal(4);
  };
  send();
  read_until(
      mine,
      [&](size_t) {
        expect_next(reader, number % 48, number);
        reader.release();
        if (++number < kRounds) send();
      },
      [&] { return number == kRounds; });
  other.join();
}

// A writer whose ring is always full sleeps for space, and its reader sleeps for records.
TEST_F(WakeBitsTest, AFullRingLosesNoWakeUp) {
  constexpr uint64_t kRecords = 20'000;
  SharedRing ring(256);
  const auto writers = std::make_unique<WakeBits>();
  std::thread other([&] {
    RingWriter writer(*ring.header, ring.data());
    uint64_t number = 0;
    const auto write_all = [&](size_t) {
      while (number < kRecords) {
        while (number < kRecords && reserve(writer, number % 30, number)) ++number;
        if (writer.commit()) bits_->signal(1);
        if (number < kRecords && asks(writer)) return;
      }
    };
    write_all(0);
    read_until(*writers, write_all, [&] { return number == kRecords; });
  });
  RingReader reader(*ring.header, ring.data(), kLastKind);
  uint64_t number = 0;
  read_until(
      *bits_,
      [&](size_t) {
        for (auto record = reader.next(); record.ok() && record->has_value();
             record = reader.next()) {
          expect_filled((*record)->content, number++);
          if (reader.release()) writers->signal(2);
        }
        if (reader.release()) writers->signal(2);
      },
      [&] { return number == kRecords; });
  other.join();
}

TEST_F(WakeBitsTest, NoCorruptionHarmsTheReader) {
  const uint64_t seed = random_test_seed();
  SCOPED_TRACE(::testing::Message() << "WEFT_SEED=" << seed);
  std::mt19937_64 random(seed);
  const uint64_t corruptions = corruptions_to_try();
  for (uint64_t i = 0; i < corruptions; ++i) {
    switch (random() % 4) {
      case 0:
        bits_->armed = static_cast<uint32_t>(random());
        break;
      case 1:
        bits_->word.value = static_cast<uint32_t>(random());
        break;
      case 2:
        bits_->word.sleepers = static_cast<uint32_t>(random() % 2);
        break;
      case 3:
        bits_->pending[random() % 16] = random();
        break;
    }
    const size_t slot = random() % WakeBits::kSlots;
    if (random() % 8 == 0) bits_->signal(slot);
    if (random() % 8 == 0) {
      bits_->take_pending([](size_t pending) { ASSERT_LT(pending, WakeBits::kSlots); });
      EXPECT_FALSE(bits_->any_pending());
      bits_->sleep(bits_->arm(kReader), SteadyClock::now(), kReader);
    }
  }
}

}  // namespace
}  // namespace weft
