#include "weft/shm/blocks/block_arena.h"

#include <cstring>
#include <fcntl.h>
#include <fstream>
#include <iostream>
#include <optional>
#include <random>
#include <string>
#include <thread>
#include <utility>
#include <vector>

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "absl/base/thread_annotations.h"
#include "absl/strings/str_cat.h"
#include "weft/base/mutex.h"

namespace weft {
namespace {

using testing::ElementsAre;
using testing::HasSubstr;

constexpr uint64_t kMegabyte = uint64_t{1} << 20;
constexpr WorkerId kBorrower{1, 1}, kOtherBorrower{2, 1};

BlockArena::Options with_cap(uint64_t cap) { return {.cap = cap, .label = "weft-arena-test"}; }

// Hands over what the test says that the peer gave back.
class ScriptedReturns : public ReturnSource {
 public:
  void give_back(const Lending& lending) ABSL_LOCKS_EXCLUDED(mutex_) {
    MutexLock lock(mutex_);
    returned_.push_back(lending);
  }
  void drain(std::vector<Lending>& returned) override ABSL_LOCKS_EXCLUDED(mutex_) {
    MutexLock lock(mutex_);
    ++drains_;
    returned.insert(returned.end(), returned_.begin(), returned_.end());
    returned_.clear();
  }
  void on_violation(const absl::Status& why) override ABSL_LOCKS_EXCLUDED(mutex_) {
    MutexLock lock(mutex_);
    violation_ = why;
  }
  int drains() const ABSL_LOCKS_EXCLUDED(mutex_) {
    MutexLock lock(mutex_);
    return drains_;
  }
  absl::Status violation() const ABSL_LOCKS_EXCLUDED(mutex_) {
    MutexLock lock(mutex_);
    return violation_;
  }

 private:
  mutable Mutex mutex_;
  std::vector<Lending> returned_ ABSL_GUARDED_BY(mutex_);
  int drains_ ABSL_GUARDED_BY(mutex_) = 0;
  absl::Status violation_ ABSL_GUARDED_BY(mutex_);
};

// Creates memory only when the test allows it.
class Gate {
 public:
  BlockArena::CreateMemory create() {
    return [this](const std::string& label, size_t size) {
      pass();
      return SealedMemory::create(label, size);
    };
  }
  void shut() ABSL_LOCKS_EXCLUDED(mutex_) {
    MutexLock lock(mutex_);
    open_ = false;
  }
  void open() ABSL_LOCKS_EXCLUDED(mutex_) {
    MutexLock lock(mutex_);
    open_ = true;
    changed_.notify_all();
  }
  void await(int arrivals) ABSL_LOCKS_EXCLUDED(mutex_) {
    MutexLock lock(mutex_);
    while (arrivals_ < arrivals) changed_.wait(mutex_);
  }

 private:
  void pass() ABSL_LOCKS_EXCLUDED(mutex_) {
    MutexLock lock(mutex_);
    ++arrivals_;
    changed_.notify_all();
    while (!open_) changed_.wait(mutex_);
  }

  Mutex mutex_;
  CondVar changed_;
  bool open_ ABSL_GUARDED_BY(mutex_) = true;
  int arrivals_ ABSL_GUARDED_BY(mutex_) = 0;
};

BlockArena::Block block_of(BlockArena& arena, size_t size) {
  std::optional<BlockArena::Block> block = arena.allocate(size);
  EXPECT_TRUE(block.has_value());
  return block.has_value() ? *std::move(block) : BlockArena::Block{};
}

Lending lent_by(BlockArena& arena, const BlockArena::Block& block, WorkerId peer) {
  const absl::StatusOr<uint32_t> generation = arena.lend(block.id, peer);
  EXPECT_TRUE(generation.ok()) << generation.status();
  return {block.id.segment, generation.value_or(0), block.id.offset};
}

// ---- growth and the cap

TEST(BlockArenaTest, StartsWith4MiBAndDoublesWhatThereIs) {
  BlockArena arena(with_cap(64 * kMegabyte));
  EXPECT_EQ(arena.statistics().blocks.bytes, 0u);
  std::vector<BlockArena::Block> blocks;
  std::vector<uint64_t> sizes;
  while (blocks.size() < 32) {
    blocks.push_back(block_of(arena, kMegabyte));
    std::memset(blocks.back().data, 1, blocks.back().size);
    const uint64_t bytes = arena.statistics().blocks.bytes;
    if (sizes.empty() || sizes.back() != bytes) sizes.push_back(bytes);
  }
  EXPECT_THAT(sizes, ElementsAre(4 * kMegabyte, 8 * kMegabyte, 16 * kMegabyte, 32 * kMegabyte));
}

TEST(BlockArenaTest, MakesASegmentAsLargeAsTheBlockNeeds) {
  BlockArena arena(with_cap(64 * kMegabyte));
  const BlockArena::Block block = block_of(arena, 20 * kMegabyte);
  EXPECT_EQ(arena.statistics().blocks.bytes, 20 * kMegabyte);
  std::memset(block.data, 1, block.size);
}

TEST(BlockArenaTest, StaysBelowItsCap) {
  BlockArena arena(with_cap(5 * kMegabyte));
  std::vector<BlockArena::Block> blocks;
  while (auto block = arena.allocate(kMegabyte)) blocks.push_back(*std::move(block));
  EXPECT_EQ(blocks.size(), 5u) << "the last segment has what is left";
  EXPECT_EQ(arena.statistics().blocks.bytes, 5 * kMegabyte);
  EXPECT_EQ(arena.statistics().refused_at_cap, 1u);
  EXPECT_FALSE(arena.allocate(6 * kMegabyte).has_value());
  EXPECT_FALSE(arena.allocate(SIZE_MAX).has_value());
}

TEST(BlockArenaTest, RetiresIdleSegmentsAtTheCapForALargeBlock) {
  BlockArena arena(with_cap(16 * kMegabyte));
  const BlockArena::Block kept = block_of(arena, kMegabyte);
  block_of(arena, 4 * kMegabyte);  // segment 2 is idle again at once
  EXPECT_FALSE(arena.allocate(13 * kMegabyte).has_value()) << "segment 1 is in use";
  EXPECT_EQ(arena.statistics().blocks.segments, 2u) << "retiring would not have helped";
  const BlockArena::Block large = block_of(arena, 12 * kMegabyte);
  EXPECT_EQ(large.id.segment, 3u);
  EXPECT_EQ(arena.segment(2), nullptr);
  EXPECT_NE(arena.segment(1), nullptr);
}

TEST(BlockArenaTest, HasNoBlockIfTheSystemRefusesMemory) {
  bool refuse = true;
  BlockArena::Options options = with_cap(64 * kMegabyte);
  options.create = [&refuse](const std::string& label, size_t size) {
    if (refuse) return absl::StatusOr<SealedMemory>(absl::ResourceExhaustedError("no memory"));
    return SealedMemory::create(label, size);
  };
  BlockArena arena(options);
  EXPECT_FALSE(arena.allocate(1).has_value());
  EXPECT_EQ(arena.statistics().refused_by_system, 1u);
  refuse = false;
  EXPECT_TRUE(arena.allocate(1).has_value());
}

TEST(BlockArenaTest, GrowsOnlyIfItMay) {
  BlockArena arena(with_cap(64 * kMegabyte));
  EXPECT_FALSE(arena.allocate_without_growth(1).has_value());
  const BlockArena::Block block = block_of(arena, 1);
  EXPECT_TRUE(arena.allocate_without_growth(1).has_value());
}

TEST(BlockArenaTest, UsesTheSameMemoryAgain) {
  BlockArena arena(with_cap(64 * kMegabyte));
  std::byte* const first = block_of(arena, 3 * kMegabyte).data;
  for (int i = 0; i < 100; ++i) ASSERT_EQ(block_of(arena, 3 * kMegabyte).data, first);
  EXPECT_EQ(arena.statistics().created, 1u);
}

// ---- blocks

TEST(BlockArenaTest, FindsTheBlockOfAnAddress) {
  BlockArena arena(with_cap(64 * kMegabyte));
  const BlockArena::Block other = block_of(arena, 1), block = block_of(arena, 100'000);
  const auto whole = arena.find(block.data, block.size);
  ASSERT_TRUE(whole.has_value());
  EXPECT_EQ(whole->id, block.id);
  EXPECT_EQ(whole->offset, block.id.offset);
  EXPECT_EQ(arena.find(block.data + 640, 64)->offset, block.id.offset + 640);
  EXPECT_FALSE(arena.find(other.data, BlockTable::kUnit + 1).has_value()) << "two blocks";
  EXPECT_FALSE(arena.find(block.data, SIZE_MAX).has_value());
  EXPECT_FALSE(arena.find(block.data - kMegabyte, 1).has_value());
  EXPECT_FALSE(arena.find(block.data + 2 * kMegabyte, 1).has_value()) << "it is free";
  EXPECT_FALSE(arena.find(&arena, 1).has_value());
  EXPECT_FALSE(arena.find(nullptr, 1).has_value());
}

TEST(BlockArenaTest, ABlockLivesAsLongAsItsLastReference) {
  BlockArena arena(with_cap(64 * kMegabyte));
  BlockArena::Block block = block_of(arena, kMegabyte);
  std::shared_ptr<void> second = arena.hold(block.id);
  block.owner.reset();
  EXPECT_EQ(arena.statistics().blocks.held_bytes, kMegabyte);
  second.reset();
  EXPECT_EQ(arena.statistics().blocks.held_bytes, 0u);
}

TEST(BlockArenaTest, ABlockOutlivesTheArena) {
  const auto mapped = [] {
    std::ifstream maps("/proc/self/maps");
    return std::string(std::istreambuf_iterator<char>(maps), {});
  };
  const auto is_mapped = [&](int segment) {
    return mapped().find(absl::StrCat("weft-arena-test-", segment)) != std::string::npos;
  };
  std::optional<BlockArena> arena(with_cap(64 * kMegabyte));
  BlockArena::Block a = block_of(*arena, 4 * kMegabyte), b = block_of(*arena, 4 * kMegabyte),
                    idle = block_of(*arena, 4 * kMegabyte);
  EXPECT_TRUE(is_mapped(1) && is_mapped(2) && is_mapped(3));
  idle = {};
  arena.reset();
  EXPECT_TRUE(is_mapped(1) && is_mapped(2));
  EXPECT_FALSE(is_mapped(3)) << "idle memory is freed";
  b = {};
  EXPECT_FALSE(is_mapped(2)) << "and so is what becomes idle later";
  std::memset(a.data, 7, a.size);
  EXPECT_EQ(a.data[a.size - 1], std::byte{7});
  a = {};
  EXPECT_FALSE(is_mapped(1));
}

// ---- lendings

TEST(BlockArenaTest, HandsOverTheMemoryInWhichItsBlocksLie) {
  BlockArena arena(with_cap(64 * kMegabyte));
  const BlockArena::Block block = block_of(arena, kMegabyte);
  std::memset(block.data, 42, block.size);
  const std::shared_ptr<const SealedMemory> memory = arena.segment(block.id.segment);
  ASSERT_NE(memory, nullptr);
  const absl::StatusOr<SealedMemory> theirs = SealedMemory::adopt(
      FileDescriptor(::fcntl(memory->descriptor(), F_DUPFD_CLOEXEC, 0)), memory->size());
  ASSERT_TRUE(theirs.ok()) << theirs.status();
  EXPECT_EQ(theirs->data()[block.id.offset], std::byte{42});
  EXPECT_EQ(arena.segment(99), nullptr);
}

TEST(BlockArenaTest, TakesReturnsBeforeItGrows) {
  BlockArena arena(with_cap(64 * kMegabyte));
  const auto source = std::make_shared<ScriptedReturns>();
  arena.add_source(kBorrower, source);
  std::byte* data = nullptr;
  for (int i = 0; i < 50; ++i) {
    const BlockArena::Block block = block_of(arena, 3 * kMegabyte);
    if (data == nullptr) data = block.data;
    ASSERT_EQ(block.data, data) << "the block that came back is used";
    source->give_back(lent_by(arena, block, kBorrower));
  }
  EXPECT_EQ(arena.statistics().blocks.bytes, 4 * kMegabyte);
  EXPECT_EQ(arena.statistics().returned, 49u);
}

TEST(BlockArenaTest, TakesReturnsNowAndThenAlsoWithoutNeed) {
  BlockArena arena(with_cap(64 * kMegabyte));
  const auto source = std::make_shared<ScriptedReturns>();
  arena.add_source(kBorrower, source);
  const BlockArena::Block large = block_of(arena, 16 * kMegabyte);
  const int before = source->drains();
  for (int i = 0; i < 65; ++i) block_of(arena, BlockTable::kUnit);
  EXPECT_EQ(source->drains(), before + 2) << "once to look before it grew, once after 1 MiB";
}

TEST(BlockArenaTest, TellsTheSourceOfAViolationAndTakesTheRest) {
  BlockArena arena(with_cap(64 * kMegabyte));
  const auto source = std::make_shared<ScriptedReturns>();
  arena.add_source(kBorrower, source);
  const BlockArena::Block a = block_of(arena, 1), b = block_of(arena, 1);
  const Lending stolen = lent_by(arena, a, kOtherBorrower), good = lent_by(arena, b, kBorrower);
  source->give_back(stolen);
  source->give_back(good);
  arena.drain();
  EXPECT_THAT(std::string(source->violation().message()), HasSubstr("that w2.1 has"));
  EXPECT_EQ(arena.statistics().violations, 1u);
  EXPECT_FALSE(arena.borrower(kBorrower).has_value());
  EXPECT_EQ(arena.borrower(kOtherBorrower)->blocks, 1u);
}

TEST(BlockArenaTest, ARemovedSourceIsNotAsked) {
  BlockArena arena(with_cap(64 * kMegabyte));
  const auto source = std::make_shared<ScriptedReturns>(),
             dead = std::make_shared<ScriptedReturns>();
  arena.add_source(kBorrower, source);
  arena.add_source(kOtherBorrower, dead);
  arena.drain();
  arena.remove_source(source.get());
  arena.peer_gone(kOtherBorrower);
  arena.drain();
  EXPECT_EQ(source->drains(), 1);
  EXPECT_EQ(dead->drains(), 1);
  EXPECT_EQ(source.use_count(), 1);
}

TEST(BlockArenaTest, ADeadPeerHoldsNothing) {
  BlockArena arena(with_cap(4 * kMegabyte));
  lent_by(arena, block_of(arena, 3 * kMegabyte), kBorrower);
  EXPECT_FALSE(arena.allocate(3 * kMegabyte).has_value());
  EXPECT_EQ(arena.largest_borrower()->peer, kBorrower);
  EXPECT_EQ(arena.peer_gone(kBorrower), 1u);
  EXPECT_TRUE(arena.allocate(3 * kMegabyte).has_value());
}

TEST(BlockArenaTest, ABlockComesHomeWithItsContent) {
  BlockArena arena(with_cap(64 * kMegabyte));
  Lending lending;
  {
    const BlockArena::Block block = block_of(arena, kMegabyte);
    std::memset(block.data, 9, block.size);
    lending = lent_by(arena, block, kBorrower);
  }
  EXPECT_FALSE(arena.taken_home(kOtherBorrower, lending).ok());
  const absl::StatusOr<BlockArena::Block> home = arena.taken_home(kBorrower, lending);
  ASSERT_TRUE(home.ok()) << home.status();
  EXPECT_EQ(home->data[kMegabyte - 1], std::byte{9});
  EXPECT_TRUE(absl::IsInvalidArgument(arena.returned(kBorrower, lending)));
}

TEST(BlockArenaTest, RetiresOnlyWhatIsIdleForLongEnough) {
  BlockArena arena(with_cap(64 * kMegabyte));
  const TimePoint start = std::chrono::steady_clock::now();
  BlockArena::Block a = block_of(arena, 4 * kMegabyte), b = block_of(arena, 4 * kMegabyte);
  const Lending lending = lent_by(arena, b, kBorrower);
  a = {};
  b = {};
  arena.retire_idle(start);
  EXPECT_NE(arena.segment(1), nullptr);
  arena.retire_idle(kNever);
  EXPECT_EQ(arena.segment(1), nullptr);
  EXPECT_NE(arena.segment(2), nullptr) << "it is lent";
  ASSERT_TRUE(arena.returned(kBorrower, lending).ok());
  arena.retire_idle(kNever);
  EXPECT_EQ(arena.segment(2), nullptr);
  EXPECT_EQ(arena.statistics().blocks.bytes, 0u);
  EXPECT_EQ(block_of(arena, 1).id.segment, 3u) << "a number is not used again";
}

// ---- threads

TEST(BlockArenaThreads, WhoFindsAFreeBlockDoesNotWaitForASegmentUnderCreation) {
  Gate gate;
  BlockArena::Options options = with_cap(64 * kMegabyte);
  options.create = gate.create();
  BlockArena arena(options);
  const BlockArena::Block first = block_of(arena, 1);  // the rest of segment 1 is free
  gate.shut();
  std::thread grower([&] { EXPECT_TRUE(arena.allocate(8 * kMegabyte).has_value()); });
  gate.await(2);
  // Each of these would hang if the grower held the lock.
  const BlockArena::Block block = block_of(arena, kMegabyte);
  EXPECT_TRUE(arena.find(block.data, block.size).has_value());
  EXPECT_TRUE(arena.returned(kBorrower, lent_by(arena, block, kBorrower)).ok());
  gate.open();
  grower.join();
}

TEST(BlockArenaThreads, WhoNeedsMemoryWaitsForASegmentUnderCreationAndSharesIt) {
  Gate gate;
  BlockArena::Options options = with_cap(64 * kMegabyte);
  options.create = gate.create();
  BlockArena arena(options);
  gate.shut();
  std::vector<std::thread> threads;
  Mutex mutex;
  std::vector<BlockArena::Block> blocks;
  for (int i = 0; i < 4; ++i) {
    threads.emplace_back([&] {
      BlockArena::Block block = block_of(arena, kMegabyte);
      MutexLock lock(mutex);
      blocks.push_back(std::move(block));
    });
  }
  gate.await(1);
  gate.open();
  for (std::thread& thread : threads) thread.join();
  EXPECT_EQ(arena.statistics().created, 1u);
}

// Each thread fills its blocks with a pattern of its own, lends some of them, and checks the
// pattern before it lets go of them. A block that two threads had at once would show.
TEST(BlockArenaThreads, NoBlockIsGivenToTwoThreads) {
  constexpr uint64_t kSeed = 22;
  std::cout << "seed " << kSeed << std::endl;
  BlockArena arena(with_cap(12 * kMegabyte));
  const auto source = std::make_shared<ScriptedReturns>();
  arena.add_source(kBorrower, source);
  std::vector<std::thread> threads;
  for (uint64_t thread = 0; thread < 3; ++thread) {
    threads.emplace_back([&arena, &source, thread] {
      std::mt19937_64 random(kSeed + thread);
      std::vector<std::pair<BlockArena::Block, uint64_t>> mine;
      for (uint64_t i = 0; i < 400; ++i) {
        if (auto block = arena.allocate(1 + random() % (kMegabyte / 2))) {
          const uint64_t mark = thread << 32 | i;
          std::memcpy(block->data, &mark, 1);
          std::memset(block->data, static_cast<int>(mark % 251), block->size);
          mine.emplace_back(*std::move(block), mark);
        }
        while (mine.size() > 8 || (i + 1 == 400 && !mine.empty())) {
          const size_t at = random() % mine.size();
          auto [block, mark] = mine[at];
          mine.erase(mine.begin() + static_cast<ptrdiff_t>(at));
          const std::byte expected{static_cast<uint8_t>(mark % 251)};
          for (size_t byte = 0; byte < block.size; byte += 997) {
            ASSERT_EQ(block.data[byte], expected);
          }
          ASSERT_EQ(arena.find(block.data, block.size)->id, block.id);
          if (random() % 2 == 0) source->give_back(lent_by(arena, block, kBorrower));
          if (random() % 16 == 0) arena.retire_idle(kNever);
        }
      }
    });
  }
  for (std::thread& thread : threads) thread.join();
  arena.retire_idle(kNever);
  EXPECT_TRUE(source->violation().ok()) << source->violation();
  EXPECT_EQ(arena.statistics().blocks.bytes, 0u) << "the arena ends empty";
}

}  // namespace
}  // namespace weft
