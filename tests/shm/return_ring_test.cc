#include "weft/shm/return_ring.h"

#include <atomic>
#include <deque>
#include <memory>
#include <random>
#include <string>
#include <thread>
#include <vector>

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "weft/tests/shm/hostile_peer.h"

namespace weft {
namespace {

using ::testing::ElementsAre;
using ::testing::HasSubstr;

constexpr uint64_t kSlots = ReturnRing::kSlots;

Lending block(uint64_t number) {
  return {.segment = static_cast<uint32_t>(number % 7),
          .generation = static_cast<uint32_t>(number * 3),
          .offset = number << 33 | number};
}

class ReturnRingTest : public ::testing::Test {
 protected:
  // True: the owner must be signalled.
  bool push(uint64_t number) {
    const absl::StatusOr<bool> pushed = borrower_.push(block(number));
    EXPECT_TRUE(pushed.ok()) << pushed.status();
    return pushed.value_or(false);
  }
  std::vector<Lending> take(size_t most = kSlots) {
    std::vector<Lending> taken(most);
    const absl::StatusOr<size_t> count = owner_.take(taken);
    EXPECT_TRUE(count.ok()) << count.status();
    taken.resize(count.value_or(0));
    return taken;
  }
  // True: nothing has come, so the next push wakes the owner.
  bool asks() {
    const absl::StatusOr<bool> come = owner_.request_wake();
    EXPECT_TRUE(come.ok()) << come.status();
    return !come.value_or(true);
  }

  std::unique_ptr<ReturnRing> ring_ = std::make_unique<ReturnRing>();
  ReturnWriter borrower_{*ring_};
  ReturnReader owner_{*ring_};
};

TEST_F(ReturnRingTest, AllZerosIsAnEmptyRing) { EXPECT_TRUE(take().empty()); }

TEST_F(ReturnRingTest, TakesReturnsInOrderAsManyAsFit) {
  for (uint64_t i = 0; i < 5; ++i) EXPECT_FALSE(push(i));
  EXPECT_THAT(take(2), ElementsAre(block(0), block(1)));
  EXPECT_THAT(take(0), ElementsAre());
  EXPECT_THAT(take(), ElementsAre(block(2), block(3), block(4)));
  EXPECT_THAT(take(), ElementsAre());
}

TEST_F(ReturnRingTest, HasASlotForEveryBlockThatMayBeLent) {
  for (uint64_t round = 0; round < 5; ++round) {
    for (uint64_t i = 0; i < kSlots; ++i) push(round * kSlots + i);
    const std::vector<Lending> taken = take();
    ASSERT_EQ(taken.size(), kSlots);
    for (uint64_t i = 0; i < kSlots; ++i) ASSERT_EQ(taken[i], block(round * kSlots + i));
  }
}

TEST_F(ReturnRingTest, AnOwnerThatAsksIsWokenByTheNextReturnOnly) {
  EXPECT_FALSE(push(0));
  take();
  ASSERT_TRUE(asks());
  EXPECT_TRUE(push(1));
  EXPECT_FALSE(push(2));
}

TEST_F(ReturnRingTest, AnOwnerSeesWhatCameBeforeItAsked) {
  push(0);
  EXPECT_FALSE(asks());
  EXPECT_FALSE(push(1)) << "it is not asleep";
  EXPECT_THAT(take(), ElementsAre(block(0), block(1)));
}

TEST_F(ReturnRingTest, TheOwnerRefusesPositionsThatLie) {
  for (const uint64_t tail : {uint64_t{0}, uint64_t{4}, 3 + kSlots + 1, UINT64_MAX}) {
    SCOPED_TRACE(tail);
    const auto ring = std::make_unique<ReturnRing>();
    ReturnWriter borrower(*ring);
    ReturnReader owner(*ring);
    for (uint64_t i = 0; i < 5; ++i) ASSERT_TRUE(borrower.push(block(i)).ok());
    std::vector<Lending> taken(3);
    ASSERT_EQ(owner.take(taken).value_or(0), 3u);
    ring->tail = tail;
    const absl::Status refused = owner.take(taken).status();
    EXPECT_TRUE(absl::IsInvalidArgument(refused)) << refused;
    EXPECT_EQ(refused.message(), "return ring: the borrower's position is " + std::to_string(tail) +
                                     ", must be from 5 to 1027");
    ring->tail = 5;
    EXPECT_EQ(owner.take(taken).status(), refused);
    EXPECT_EQ(owner.request_wake().status(), refused);
    EXPECT_EQ(ring->head.load(), 3u);
  }
}

TEST_F(ReturnRingTest, AskingForAWakeChecksThePosition) {
  ring_->tail = kSlots + 1;
  EXPECT_TRUE(absl::IsInvalidArgument(owner_.request_wake().status()));
}

TEST_F(ReturnRingTest, TheBorrowerRefusesPositionsThatLie) {
  for (const uint64_t head : {uint64_t{1}, uint64_t{8}, kSlots + 10, UINT64_MAX}) {
    SCOPED_TRACE(head);
    const auto ring = std::make_unique<ReturnRing>();
    ReturnWriter borrower(*ring);
    for (uint64_t i = 0; i < kSlots; ++i) ASSERT_TRUE(borrower.push(block(i)).ok());
    ring->head = 9;
    for (uint64_t i = 0; i < 9; ++i) ASSERT_TRUE(borrower.push(block(i)).ok());
    ring->head = head;
    const absl::Status refused = borrower.push(block(0)).status();
    EXPECT_TRUE(absl::IsInvalidArgument(refused)) << refused;
    EXPECT_EQ(refused.message(), "return ring: the owner's position is " + std::to_string(head) +
                                     ", must be from 9 to 1033");
    ring->head = 100;
    EXPECT_EQ(borrower.push(block(0)).status(), refused);
  }
}

TEST_F(ReturnRingTest, TheBorrowerNoticesThatMoreWasLentThanThereAreSlots) {
  for (uint64_t i = 0; i < kSlots; ++i) push(i);
  const absl::Status refused = borrower_.push(block(0)).status();
  EXPECT_TRUE(absl::IsInvalidArgument(refused)) << refused;
  EXPECT_THAT(std::string(refused.message()), HasSubstr("all 1024 slots are full"));
  EXPECT_EQ(take().size(), kSlots);
}

TEST_F(ReturnRingTest, BehavesLikeAQueue) {
  const uint64_t seed = random_test_seed();
  SCOPED_TRACE(::testing::Message() << "WEFT_SEED=" << seed);
  std::mt19937_64 random(seed);
  std::deque<uint64_t> queue;
  bool waits = false;
  for (uint64_t i = 0, number = 0; i < 3'000 && !HasFailure(); ++i) {
    switch (random() % 4) {
      case 0:
      case 1:
        for (uint64_t more = random() % 64; more > 0 && queue.size() < kSlots; --more) {
          EXPECT_EQ(push(number), waits);
          waits = false;
          queue.push_back(number++);
        }
        break;
      case 2:
        for (const Lending& taken : take(random() % 200)) {
          ASSERT_FALSE(queue.empty());
          EXPECT_EQ(taken, block(queue.front()));
          queue.pop_front();
        }
        break;
      case 3:
        EXPECT_EQ(waits = asks(), queue.empty());
        break;
    }
  }
  EXPECT_EQ(take().size(), queue.size());
}

TEST_F(ReturnRingTest, CarriesReturnsBetweenTwoThreads) {
  constexpr uint64_t kReturns = 50'000;
  std::atomic<uint64_t> lent{0};   // the owner lends at most as many as there are slots
  std::atomic<bool> woken{false};  // stands for a signal to the owner
  std::atomic<bool> over{false};
  std::thread other([&] {
    for (uint64_t number = 0; number < kReturns && !over;) {
      if (number == lent) {
        std::this_thread::yield();
        continue;
      }
      if (push(number++)) woken = true;
    }
  });
  std::vector<Lending> taken(100);
  for (uint64_t number = 0; number < kReturns && !HasFailure();) {
    lent = number + kSlots;
    const absl::StatusOr<size_t> count = owner_.take(taken);
    EXPECT_TRUE(count.ok()) << count.status();
    for (size_t i = 0; i < count.value_or(0); ++i) EXPECT_EQ(taken[i], block(number++));
    if (count.value_or(1) != 0 || !asks()) continue;
    while (!woken.exchange(false)) std::this_thread::yield();
  }
  over = true;
  other.join();
}

// ---- A hostile peer

void corrupt(ReturnRing& ring, std::mt19937_64& random) {
  switch (random() % 4) {
    case 0:
      ring.tail += random() % 2'000 - 900;
      break;
    case 1:
      ring.head += random() % 2'000 - 900;
      break;
    case 2:
      ring.wants_memory = static_cast<uint32_t>(random());
      break;
    case 3:
      ring.slots[random() % kSlots].offset = random();
      break;
  }
}

TEST_F(ReturnRingTest, NoCorruptionHarmsAnybody) {
  const uint64_t seed = random_test_seed();
  SCOPED_TRACE(::testing::Message() << "WEFT_SEED=" << seed);
  std::mt19937_64 random(seed);
  const uint64_t corruptions = ring_test::corruptions_to_try();
  std::vector<Lending> taken(300);
  for (uint64_t done = 0; done < corruptions && !HasFailure();) {
    ring_->tail = 0;
    ring_->head = 0;
    ReturnWriter borrower(*ring_);
    ReturnReader owner(*ring_);
    bool pushes = true;
    bool takes = true;
    for (int i = 0; (pushes || takes) && i < 300; ++i) {
      const uint64_t most = random() % 16 == 0 ? kSlots : 4;
      for (uint64_t more = random() % most; pushes && more > 0; --more) {
        pushes = borrower.push(block(more)).ok();
      }
      if (takes && random() % 2 == 0) {
        const absl::StatusOr<size_t> count = owner.take(taken);
        EXPECT_LE(count.value_or(0), taken.size());
        takes = count.ok() && owner.request_wake().ok();
      }
      if (random() % 2 == 0) {
        corrupt(*ring_, random);
        ++done;
      }
    }
    // The peer can publish no more than there are slots, so this loop ends.
    size_t left = 0;
    while (takes) {
      const size_t count = owner.take(taken).value_or(0);
      if (count == 0) break;
      ASSERT_LE(left += count, kSlots);
    }
  }
}

}  // namespace
}  // namespace weft
