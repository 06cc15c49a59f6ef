// The table of blocks keeps its guarantees, in examples and in long random schedules that compare
// it with a naive model.
//
// WEFT_SEED=n runs another schedule, WEFT_OPERATIONS=n a schedule of that length.
#include "weft/shm/blocks/block_table.h"

#include <algorithm>
#include <cmath>
#include <cstdlib>
#include <iostream>
#include <map>
#include <random>
#include <string>
#include <vector>

#include <gmock/gmock.h>
#include <gtest/gtest.h>

namespace weft {
namespace {

using testing::ElementsAre;
using testing::HasSubstr;
using testing::IsEmpty;

constexpr uint64_t kUnit = BlockTable::kUnit;
constexpr uint64_t kMiB = uint64_t{1} << 20;
constexpr WorkerId kAnn{1, 1}, kBob{2, 1};

TimePoint at(int seconds) { return TimePoint(std::chrono::seconds(seconds)); }

std::string refusal(const absl::Status& status) {
  EXPECT_TRUE(absl::IsInvalidArgument(status)) << status;
  return std::string(status.message());
}

class BlockTableTest : public testing::Test {
 protected:
  void SetUp() override { ASSERT_TRUE(table_.add_segment(1, 4 * kMiB, at(0)).ok()); }

  BlockId taken(uint64_t size) {
    const auto found = table_.allocate(size);
    EXPECT_TRUE(found.has_value());
    return found->block;
  }
  Lending lent(BlockId block, WorkerId peer) {
    const absl::StatusOr<uint32_t> generation = table_.lend(block, peer, at(1));
    EXPECT_TRUE(generation.ok()) << generation.status();
    return {block.segment, *generation, block.offset};
  }

  BlockTable table_;
};

// ---- sizes

TEST_F(BlockTableTest, WastesAtMostAnEighthAndAUnit) {
  for (uint64_t size = 1; size <= BlockTable::kLargestSegment; size += 1 + size / 37) {
    const std::optional<uint64_t> whole = BlockTable::block_size(size);
    ASSERT_TRUE(whole.has_value());
    ASSERT_EQ(*whole % kUnit, 0u);
    ASSERT_GE(*whole, size);
    ASSERT_LE(*whole, size + size / 8 + kUnit) << size;
    ASSERT_EQ(BlockTable::block_size(*whole), whole) << "a size of a block is a size of its own";
  }
  EXPECT_FALSE(BlockTable::block_size(BlockTable::kLargestSegment + 1).has_value());
  EXPECT_FALSE(BlockTable::block_size(UINT64_MAX).has_value());
}

TEST_F(BlockTableTest, RefusesSegmentsThatAreNotPossible) {
  for (const auto& [number, size] : {std::pair{1u, kMiB},
                                     {0u, kMiB},
                                     {2u, uint64_t{0}},
                                     {2u, kUnit + 1},
                                     {2u, 2 * BlockTable::kLargestSegment}}) {
    EXPECT_TRUE(absl::IsInvalidArgument(table_.add_segment(number, size, at(0)))) << number;
  }
  for (uint32_t number = 2; number <= BlockTable::kMostSegments; ++number) {
    ASSERT_TRUE(table_.add_segment(number, kUnit, at(0)).ok());
  }
  EXPECT_TRUE(absl::IsResourceExhausted(table_.add_segment(5000, kUnit, at(0))));
}

// ---- allocation

TEST_F(BlockTableTest, GivesTheLowestAddressThatFits) {
  ASSERT_TRUE(table_.add_segment(2, 4 * kMiB, at(0)).ok());
  const BlockId first = taken(kMiB), small = taken(1), other = taken(2 * kMiB);
  EXPECT_EQ(first, (BlockId{1, 0}));
  EXPECT_EQ(small, (BlockId{1, kMiB}));
  EXPECT_EQ(taken(2 * kMiB), (BlockId{2, 0})) << "the rest of segment 1 is too small";
  table_.drop_reference(first, at(1));
  EXPECT_EQ(taken(kUnit), (BlockId{1, 0}));
  EXPECT_EQ(taken(kMiB), (BlockId{2, 2 * kMiB})) << "a unit is missing at the front of segment 1";
  table_.drop_reference(other, at(1));
  EXPECT_EQ(taken(kMiB), other) << "segment 1 comes first";
}

TEST_F(BlockTableTest, JoinsFreeNeighbours) {
  const BlockId a = taken(kMiB), b = taken(kMiB), c = taken(kMiB), d = taken(kMiB);
  for (const BlockId block : {a, c, b, d}) table_.drop_reference(block, at(1));
  EXPECT_EQ(taken(4 * kMiB), (BlockId{1, 0}));
  EXPECT_FALSE(table_.allocate(1).has_value());
}

TEST_F(BlockTableTest, RefusesWhatIsLargerThanAnySegment) {
  EXPECT_FALSE(table_.allocate(4 * kMiB + 1).has_value());
  EXPECT_FALSE(table_.allocate(UINT64_MAX).has_value());
  EXPECT_EQ(table_.gauges().free_bytes, 4 * kMiB);
}

TEST_F(BlockTableTest, KeepsABlockUntilItsLastReferenceIsDropped) {
  const BlockId block = taken(kMiB);
  table_.add_reference(block);
  table_.drop_reference(block, at(1));
  EXPECT_EQ(table_.gauges().held_bytes, kMiB);
  table_.drop_reference(block, at(1));
  EXPECT_EQ(table_.gauges().held_bytes, 0u);
  EXPECT_DEATH(table_.drop_reference(block, at(1)), "nobody holds the block");
}

TEST_F(BlockTableTest, FindsABlockByAnyByteOfIt) {
  taken(kUnit);
  const BlockId block = taken(3 * kUnit);
  for (const uint64_t offset : {kUnit, 2 * kUnit + 77, 4 * kUnit - 1}) {
    const auto found = table_.find(1, offset);
    ASSERT_TRUE(found.has_value());
    EXPECT_EQ(found->block, block);
    EXPECT_EQ(found->size, 3 * kUnit);
  }
  EXPECT_FALSE(table_.find(1, 4 * kUnit).has_value()) << "it is free";
  EXPECT_FALSE(table_.find(1, UINT64_MAX).has_value());
  EXPECT_FALSE(table_.find(2, 0).has_value());
}

// ---- lendings

TEST_F(BlockTableTest, ALentBlockIsNotFreeUntilItIsReturned) {
  const BlockId block = taken(4 * kMiB);
  const Lending lending = lent(block, kAnn);
  table_.drop_reference(block, at(2));
  EXPECT_FALSE(table_.allocate(1).has_value());
  EXPECT_FALSE(table_.find(1, 0).has_value()) << "no tensor of the owner is there";
  ASSERT_TRUE(table_.returned(kAnn, lending, at(3)).ok());
  EXPECT_TRUE(table_.allocate(4 * kMiB).has_value());
}

TEST_F(BlockTableTest, ALendingStaysHeldIfTheOwnerHasReferences) {
  const BlockId block = taken(kMiB);
  ASSERT_TRUE(table_.returned(kAnn, lent(block, kAnn), at(2)).ok());
  EXPECT_EQ(table_.gauges().held_bytes, kMiB);
  EXPECT_TRUE(table_.lend(block, kBob, at(3)).ok());
}

TEST_F(BlockTableTest, LendsABlockToOnePeerAtATime) {
  const BlockId block = taken(kMiB);
  lent(block, kAnn);
  for (const WorkerId peer : {kAnn, kBob}) {
    const absl::Status again = table_.lend(block, peer, at(2)).status();
    EXPECT_TRUE(absl::IsFailedPrecondition(again)) << again;
    EXPECT_THAT(std::string(again.message()), HasSubstr("is lent to w1.1"));
  }
  EXPECT_TRUE(absl::IsFailedPrecondition(table_.lend({1, kMiB}, kAnn, at(2)).status()));
  EXPECT_TRUE(absl::IsFailedPrecondition(table_.lend({9, 0}, kAnn, at(2)).status()));
}

TEST_F(BlockTableTest, NamesWhatIsWrongWithAReturn) {
  const BlockId block = taken(kMiB), held = taken(kUnit);
  const Lending lending = lent(block, kAnn);
  EXPECT_THAT(refusal(table_.returned(kBob, lending, at(2))), HasSubstr("that w1.1 has"));
  EXPECT_THAT(refusal(table_.returned(kAnn, {1, 9, 0}, at(2))),
              HasSubstr("that it has with generation 1"));
  EXPECT_THAT(refusal(table_.returned(kAnn, {1, 1, held.offset}, at(2))), HasSubstr("is not lent"));
  EXPECT_THAT(refusal(table_.returned(kAnn, {1, 1, 3 * kMiB}, at(2))), HasSubstr("that is free"));
  EXPECT_THAT(refusal(table_.returned(kAnn, {7, 1, 0}, at(2))),
              HasSubstr("w1.1 gave back a block (offset 0 of segment 7, generation 1) of a segment "
                        "that is not there"));
  EXPECT_THAT(refusal(table_.returned(kAnn, {1, 1, 4 * kMiB}, at(2))), HasSubstr("not there"));
  EXPECT_EQ(table_.gauges().lent_blocks, 1u) << "nothing has changed";
  EXPECT_TRUE(table_.returned(kAnn, lending, at(2)).ok());
  EXPECT_THAT(refusal(table_.returned(kAnn, lending, at(2))), HasSubstr("that is not lent"));
}

TEST_F(BlockTableTest, AnEarlierLendingNeverEndsALaterOne) {
  std::vector<Lending> earlier;
  for (const uint64_t size : {kMiB, 2 * kMiB, kUnit}) {  // the same address, other blocks
    const BlockId block = taken(size);
    const Lending lending = lent(block, kAnn);
    for (const Lending& old : earlier) refusal(table_.returned(kAnn, old, at(2)));
    ASSERT_TRUE(table_.returned(kAnn, lending, at(2)).ok());
    table_.drop_reference(block, at(2));
    earlier.push_back(lending);
  }
}

TEST_F(BlockTableTest, APeerHasAtMost1024Blocks) {
  ASSERT_TRUE(table_.add_segment(2, 1030 * kUnit, at(0)).ok());
  std::vector<Lending> all;
  for (size_t i = 0; i < BlockTable::kMostLentToPeer; ++i) all.push_back(lent(taken(1), kAnn));
  const BlockId block = taken(1);
  EXPECT_TRUE(absl::IsResourceExhausted(table_.lend(block, kAnn, at(2)).status()));
  EXPECT_TRUE(table_.lend(block, kBob, at(2)).ok());
  ASSERT_TRUE(table_.returned(kAnn, all[500], at(2)).ok());
  EXPECT_TRUE(table_.lend({all[500].segment, all[500].offset}, kAnn, at(2)).ok());
}

TEST_F(BlockTableTest, ABlockThatComesHomeIsHeldByWhoTookIt) {
  const BlockId block = taken(kMiB);
  const Lending lending = lent(block, kAnn);
  table_.drop_reference(block, at(2));
  EXPECT_FALSE(table_.taken_home(kBob, lending).ok());
  const absl::StatusOr<BlockTable::Found> home = table_.taken_home(kAnn, lending);
  ASSERT_TRUE(home.ok()) << home.status();
  EXPECT_EQ(home->block, block);
  EXPECT_EQ(home->size, kMiB);
  EXPECT_FALSE(table_.returned(kAnn, lending, at(3)).ok()) << "it has come home";
  table_.drop_reference(block, at(3));
  EXPECT_EQ(table_.gauges().free_bytes, 4 * kMiB);
}

TEST_F(BlockTableTest, ADeadPeerHasNothing) {
  const BlockId a = taken(kMiB), b = taken(kMiB), c = taken(kMiB);
  const Lending dead = lent(a, kAnn);
  lent(b, kAnn);
  const Lending alive = lent(c, kBob);
  table_.drop_reference(a, at(2));
  EXPECT_EQ(table_.peer_gone(kAnn, at(3)), 2u);
  EXPECT_EQ(table_.peer_gone(kAnn, at(3)), 0u);
  EXPECT_EQ(table_.gauges().held_blocks, 1u);
  EXPECT_EQ(table_.gauges().lent_blocks, 1u);
  refusal(table_.returned(kAnn, dead, at(4)));
  EXPECT_TRUE(table_.returned(kBob, alive, at(4)).ok());
}

TEST_F(BlockTableTest, TellsWhoHasMostAndForHowLong) {
  EXPECT_FALSE(table_.largest_borrower().has_value());
  const BlockId a = taken(kMiB), b = taken(kMiB), c = taken(kUnit), d = taken(kUnit);
  const Lending large = *table_.lend(a, kBob, at(1)) == 1 ? Lending{1, 1, a.offset} : Lending{};
  ASSERT_TRUE(table_.lend(b, kBob, at(2)).ok());
  ASSERT_TRUE(table_.lend(c, kAnn, at(3)).ok());
  ASSERT_TRUE(table_.lend(d, kAnn, at(4)).ok());
  auto most = table_.largest_borrower();
  EXPECT_EQ(most->peer, kBob);
  EXPECT_EQ(most->blocks, 2u);
  EXPECT_EQ(most->bytes, 2 * kMiB);
  EXPECT_EQ(most->oldest_since, at(1));
  ASSERT_TRUE(table_.returned(kBob, large, at(5)).ok());
  EXPECT_EQ(table_.borrower(kBob)->oldest_since, at(2));
  EXPECT_EQ(table_.borrower(kAnn)->bytes, 2 * kUnit);
  EXPECT_FALSE(table_.borrower(WorkerId{9, 1}).has_value());
}

// ---- idle segments

TEST_F(BlockTableTest, NamesIdleSegmentsAndDropsOnlyThose) {
  ASSERT_TRUE(table_.add_segment(2, kMiB, at(5)).ok());
  const BlockId block = taken(kMiB);
  const Lending lending = lent(block, kAnn);
  table_.drop_reference(block, at(6));
  EXPECT_THAT(table_.idle_segments(at(4)), IsEmpty());
  EXPECT_THAT(table_.idle_segments(at(5)), ElementsAre(2));
  EXPECT_TRUE(absl::IsFailedPrecondition(table_.drop_segment(1)));
  ASSERT_TRUE(table_.returned(kAnn, lending, at(7)).ok());
  EXPECT_THAT(table_.idle_segments(at(6)), ElementsAre(2));
  EXPECT_THAT(table_.idle_segments(at(7)), ElementsAre(1, 2));
  ASSERT_TRUE(table_.drop_segment(1).ok());
  EXPECT_TRUE(absl::IsNotFound(table_.drop_segment(1)));
  EXPECT_EQ(table_.gauges().bytes, kMiB);
  EXPECT_EQ(taken(1).segment, 2u);
  refusal(table_.returned(kAnn, lending, at(8)));
}

TEST(BlockTableGenerations, ASegmentWithoutGenerationsIsNotUsedAgain) {
  BlockTable table(2);
  ASSERT_TRUE(table.add_segment(1, kMiB, at(0)).ok());
  const BlockId a = table.allocate(kUnit)->block, b = table.allocate(kUnit)->block;
  ASSERT_EQ(*table.lend(a, kAnn, at(0)), 1u);
  ASSERT_TRUE(table.returned(kAnn, {1, 1, a.offset}, at(0)).ok());
  ASSERT_EQ(*table.lend(a, kAnn, at(0)), 2u);
  EXPECT_TRUE(absl::IsResourceExhausted(table.lend(b, kAnn, at(0)).status()));
  EXPECT_FALSE(table.allocate(1).has_value());
  ASSERT_TRUE(table.returned(kAnn, {1, 2, a.offset}, at(9)).ok());
  table.drop_reference(a, at(9));
  table.drop_reference(b, at(9));
  EXPECT_FALSE(table.allocate(1).has_value());
  EXPECT_THAT(table.idle_segments(at(0)), ElementsAre(1));
  ASSERT_TRUE(table.add_segment(2, kMiB, at(9)).ok());
  EXPECT_EQ(table.allocate(kMiB)->block.segment, 2u);
  EXPECT_TRUE(table.drop_segment(1).ok());
}

// ---- random schedules

uint64_t number_from_env(const char* name, uint64_t otherwise) {
  const char* text = std::getenv(name);
  return text == nullptr ? otherwise : std::strtoull(text, nullptr, 10);
}

// The same rules as the table's, with one entry per unit of memory and linear searches.
class NaiveBlocks {
 public:
  void add_segment(uint32_t number, uint64_t size) { owners_[number].resize(size / kUnit, 0); }

  std::optional<BlockId> allocate(uint64_t block_size, uint32_t owner) {
    const uint64_t units = block_size / kUnit;
    for (auto& [number, owners] : owners_) {
      uint64_t free = 0;
      for (uint64_t i = 0; i < owners.size(); ++i) {
        free = owners[i] == 0 ? free + 1 : 0;
        if (free < units) continue;
        std::fill_n(owners.begin() + static_cast<ptrdiff_t>(i + 1 - units), units, owner);
        return BlockId{number, (i + 1 - units) * kUnit};
      }
    }
    return std::nullopt;
  }
  void release(BlockId block, uint64_t block_size) {
    std::vector<uint32_t>& owners = owners_[block.segment];
    std::fill_n(owners.begin() + static_cast<ptrdiff_t>(block.offset / kUnit), block_size / kUnit,
                0);
  }

 private:
  std::map<uint32_t, std::vector<uint32_t>> owners_;  // 0: free
};

// Peers and tensors that together want 1.2 times the memory there is. Their steps are drawn.
class Schedule {
 public:
  static constexpr uint64_t kCap = 16 * kMiB;
  static constexpr uint64_t kWanted = kCap / 5 * 6;
  static constexpr uint64_t kLargest = 2 * kMiB;

  explicit Schedule(uint64_t seed) : random_(seed) {
    uint32_t number = 0;
    for (const uint64_t size : {4 * kMiB, 4 * kMiB, 8 * kMiB}) {
      EXPECT_TRUE(table_.add_segment(++number, size, now_).ok());
      naive_.add_segment(number, size);
    }
  }

  void step() {
    now_ += std::chrono::microseconds(1);
    const bool more = wanted_ < kWanted;
    const uint64_t what = draw(10);
    if (more || blocks_.empty()) {
      allocate();
    } else if (what < 4) {
      drop(draw(blocks_.size()));
    } else if (what < 6) {
      lend(draw(blocks_.size()));
    } else if (what < 9) {
      give_back(draw(blocks_.size()));
    } else if (draw(1000) == 0) {
      lose(peer());
    } else {
      add_reference(draw(blocks_.size()));
    }
    check();
  }

  void finish() {
    for (const WorkerId gone : {kAnn, kBob}) lose(gone);
    while (!blocks_.empty()) drop(blocks_.size() - 1);
    const BlockTable::Gauges gauges = table_.gauges();
    ASSERT_EQ(gauges.free_bytes, kCap) << "the arena ends empty";
    ASSERT_EQ(gauges.held_blocks + gauges.lent_blocks, 0u);
    ASSERT_EQ(table_.idle_segments(now_).size(), 3u);
    for (uint32_t number = 1; number <= 3; ++number) ASSERT_TRUE(table_.drop_segment(number).ok());
    ASSERT_EQ(table_.gauges().bytes, 0u);
  }

  uint64_t refusals() const { return refusals_; }
  // Of all moments at which a block was refused although there were as many free bytes: the part of
  // the memory that was in use.
  double least_use() const { return least_use_; }
  double mean_use() const { return refusals_ == 0 ? 1 : used_ / static_cast<double>(refusals_); }

 private:
  struct Wish {  // a tensor, with or without a block
    uint64_t size = 0;
    bool served = false;
    BlockId block{};
    uint64_t block_size = 0;
    uint32_t references = 0;
    std::optional<Lending> lending{};
    WorkerId borrower{};
  };

  uint64_t draw(uint64_t limit) { return random_() % limit; }
  WorkerId peer() { return draw(2) == 0 ? kAnn : kBob; }
  // Sizes of all magnitudes come equally often.
  uint64_t size() {
    const double exponent = std::log2(static_cast<double>(kLargest)) - 12;
    return static_cast<uint64_t>(
        std::exp2(12 + exponent * static_cast<double>(draw(1 << 20)) / (1 << 20)));
  }

  void allocate() {
    Wish wish{.size = size()};
    const uint64_t whole = *BlockTable::block_size(wish.size);
    const auto found = table_.allocate(wish.size);
    const auto expected = naive_.allocate(whole, ++last_owner_);
    ASSERT_EQ(found.has_value(), expected.has_value()) << wish.size;
    if (found.has_value()) {
      ASSERT_EQ(found->block, *expected);
      ASSERT_EQ(found->size, whole);
      wish.served = true;
      wish.block = found->block;
      wish.block_size = whole;
      wish.references = 1;
      used_bytes_ += whole;
      ++used_blocks_;
    } else {
      refused(whole);
    }
    wanted_ += wish.size;
    blocks_.push_back(wish);
  }
  void refused(uint64_t whole) {
    const uint64_t free = kCap - used_bytes_;
    // The bound that the header promises.
    ASSERT_LE(free, (used_blocks_ + 3) * (whole - kUnit));
    if (free < whole) return;
    const double use = static_cast<double>(used_bytes_) / static_cast<double>(kCap);
    ++refusals_;
    used_ += use;
    least_use_ = std::min(least_use_, use);
  }
  void drop(size_t i) {
    Wish& wish = blocks_[i];
    if (wish.references > 0) {
      table_.drop_reference(wish.block, now_);
      if (--wish.references > 0) return;
    }
    if (wish.lending.has_value()) return;
    forget(i);
  }
  void forget(size_t i) {
    if (blocks_[i].served) {
      naive_.release(blocks_[i].block, blocks_[i].block_size);
      used_bytes_ -= blocks_[i].block_size;
      --used_blocks_;
    }
    wanted_ -= blocks_[i].size;
    blocks_[i] = blocks_.back();
    blocks_.pop_back();
  }
  void add_reference(size_t i) {
    if (blocks_[i].references == 0) return;
    table_.add_reference(blocks_[i].block);
    ++blocks_[i].references;
  }
  void lend(size_t i) {
    Wish& wish = blocks_[i];
    if (!wish.served) return;
    const WorkerId to = peer();
    const absl::StatusOr<uint32_t> generation = table_.lend(wish.block, to, now_);
    ASSERT_EQ(generation.ok(), wish.references > 0 && !wish.lending.has_value());
    if (!generation.ok()) return;
    wish.lending = {wish.block.segment, *generation, wish.block.offset};
    wish.borrower = to;
    last_.push_back(*wish.lending);
    if (last_.size() > 64) last_.erase(last_.begin());
  }
  void give_back(size_t i) {
    Wish& wish = blocks_[i];
    // Some that lie: an earlier lending, another peer, another generation.
    if (!last_.empty() && draw(4) == 0) {
      const Lending lending = last_[draw(last_.size())];
      const bool right = std::any_of(blocks_.begin(), blocks_.end(), [&](const Wish& one) {
        return one.lending == lending && one.borrower == kAnn;
      });
      if (!right) {
        ASSERT_TRUE(absl::IsInvalidArgument(table_.returned(kAnn, lending, now_)));
      }
    }
    if (!wish.lending.has_value()) return;
    const WorkerId other = wish.borrower == kAnn ? kBob : kAnn;
    ASSERT_FALSE(table_.returned(other, *wish.lending, now_).ok());
    Lending wrong = *wish.lending;
    ++wrong.generation;
    ASSERT_FALSE(table_.returned(wish.borrower, wrong, now_).ok());
    wrong = *wish.lending;
    wrong.offset += draw(wish.block_size);  // any byte of the block
    if (draw(8) == 0) {
      ASSERT_TRUE(table_.taken_home(wish.borrower, wrong).ok());
      ++wish.references;
    } else {
      ASSERT_TRUE(table_.returned(wish.borrower, wrong, now_).ok());
    }
    ASSERT_FALSE(table_.returned(wish.borrower, *wish.lending, now_).ok());
    wish.lending.reset();
    if (wish.references == 0) forget(i);
  }
  void lose(WorkerId gone) {
    size_t count = 0;
    for (size_t i = blocks_.size(); i-- > 0;) {
      if (!blocks_[i].lending.has_value() || blocks_[i].borrower != gone) continue;
      ++count;
      blocks_[i].lending.reset();
      if (blocks_[i].references == 0) forget(i);
    }
    ASSERT_EQ(table_.peer_gone(gone, now_), count);
  }
  void check() {
    const BlockTable::Gauges gauges = table_.gauges();
    ASSERT_EQ(gauges.held_bytes + gauges.lent_bytes, used_bytes_);
    ASSERT_EQ(gauges.held_blocks + gauges.lent_blocks, used_blocks_);
    ASSERT_EQ(gauges.free_bytes, kCap - used_bytes_);
    ASSERT_EQ(gauges.bytes, kCap);
  }

  std::mt19937_64 random_;
  TimePoint now_;
  BlockTable table_;
  NaiveBlocks naive_;
  std::vector<Wish> blocks_;
  std::vector<Lending> last_;
  uint32_t last_owner_ = 0;
  uint64_t wanted_ = 0, used_bytes_ = 0, used_blocks_ = 0, refusals_ = 0;
  double used_ = 0, least_use_ = 1;
};

TEST(BlockTableSchedules, DoesWhatTheModelDoesAndEndsEmptyAt120PercentOfTheCap) {
  const uint64_t seed = number_from_env("WEFT_SEED", 22);
  const uint64_t operations = number_from_env("WEFT_OPERATIONS", 100'000);
  std::cout << "WEFT_SEED=" << seed << " WEFT_OPERATIONS=" << operations << std::endl;
  Schedule schedule(seed);
  for (uint64_t i = 0; i < operations && !testing::Test::HasFailure(); ++i) schedule.step();
  std::cout << schedule.refusals() << " refusals with as many bytes free; in use then: mean "
            << schedule.mean_use() << ", least " << schedule.least_use() << std::endl;
  EXPECT_GT(schedule.refusals(), operations / 1000);
  EXPECT_GT(schedule.mean_use(), 0.7);
  EXPECT_GT(schedule.least_use(), 0.35);
  schedule.finish();
}

}  // namespace
}  // namespace weft
