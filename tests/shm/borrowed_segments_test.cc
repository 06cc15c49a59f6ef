#include "weft/shm/blocks/borrowed_segments.h"

#include <algorithm>
#include <atomic>
#include <cstring>
#include <fcntl.h>
#include <optional>
#include <set>
#include <string>
#include <thread>
#include <utility>
#include <vector>

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "absl/base/thread_annotations.h"
#include "weft/base/mutex.h"

namespace weft {
namespace {

using testing::ElementsAre;
using testing::HasSubstr;
using testing::IsEmpty;

constexpr uint64_t kLentSize = BlockTable::kUnit;
constexpr uint64_t kSegmentSize = 64 * kLentSize;

TimePoint second(int n) { return TimePoint(std::chrono::seconds(n)); }

class RecordedReturns : public ReturnSink {
 public:
  void give_back(const Lending& lending) override ABSL_LOCKS_EXCLUDED(mutex_) {
    MutexLock lock(mutex_);
    all_.push_back(lending);
  }
  bool has(const Lending& lending) const ABSL_LOCKS_EXCLUDED(mutex_) {
    MutexLock lock(mutex_);
    return std::find(all_.begin(), all_.end(), lending) != all_.end();
  }
  std::vector<Lending> all() const ABSL_LOCKS_EXCLUDED(mutex_) {
    MutexLock lock(mutex_);
    return all_;
  }

 private:
  mutable Mutex mutex_;
  std::vector<Lending> all_ ABSL_GUARDED_BY(mutex_);
};

SealedMemory same(const SealedMemory& memory) {
  absl::StatusOr<SealedMemory> adopted = SealedMemory::adopt(
      FileDescriptor(::fcntl(memory.descriptor(), F_DUPFD_CLOEXEC, 0)), memory.size());
  EXPECT_TRUE(adopted.ok()) << adopted.status();
  return *std::move(adopted);
}

class BorrowedSegmentsTest : public testing::Test {
 protected:
  void SetUp() override {
    owner_ = SealedMemory::create("weft-borrowed-test", kSegmentSize).value();
    ASSERT_TRUE(borrowed_.add_segment(1, same(owner_)).ok());
  }
  absl::StatusOr<BorrowedSegments::Block> borrow(const Lending& lending, uint64_t size,
                                                 int now = 0) {
    return borrowed_.borrow(lending, size, sink_, second(now));
  }
  std::string refusal_of(const Lending& lending, uint64_t size) {
    const absl::Status status = borrow(lending, size).status();
    EXPECT_TRUE(absl::IsInvalidArgument(status)) << status;
    return std::string(status.message());
  }
  std::atomic_ref<uint64_t> word(std::byte* data, size_t index) {
    return std::atomic_ref(reinterpret_cast<uint64_t*>(data)[index]);
  }

  SealedMemory owner_;
  BorrowedSegments borrowed_{{.kept_bytes = 8 * kLentSize, .mapped_bytes = 4 * kSegmentSize}};
  const std::shared_ptr<RecordedReturns> sink_ = std::make_shared<RecordedReturns>();
};

// ---- a block is borrowed and given back

TEST_F(BorrowedSegmentsTest, SeesWhatTheOwnerWroteAndGivesTheBlockBackOnce) {
  const Lending lending{1, 1, 2 * kLentSize + 64};
  std::memset(owner_.data() + lending.offset, 42, 1000);
  absl::StatusOr<BorrowedSegments::Block> block = borrow(lending, 1000);
  ASSERT_TRUE(block.ok()) << block.status();
  EXPECT_EQ(block->size, 1000u);
  EXPECT_TRUE(block->keep);
  EXPECT_EQ(block->data[999], std::byte{42});
  std::shared_ptr<void> copy = block->owner;
  block->owner.reset();
  EXPECT_THAT(sink_->all(), IsEmpty());
  copy.reset();
  EXPECT_THAT(sink_->all(), ElementsAre(lending));
  EXPECT_EQ(borrowed_.gauges().borrowed_bytes, 0u);
}

TEST_F(BorrowedSegmentsTest, RefusesEachViolationAndNamesIt) {
  const Lending lending{1, 5, 8 * kLentSize};
  std::optional<BorrowedSegments::Block> block = *borrow(lending, 3 * kLentSize);
  EXPECT_THAT(refusal_of({2, 1, 0}, 64), HasSubstr("of a segment that was not handed over"));
  EXPECT_THAT(refusal_of({1, 1, 32}, 64), HasSubstr("is not aligned to 64 bytes"));
  EXPECT_THAT(refusal_of({1, 1, 0}, 0), HasSubstr("is empty or not inside"));
  EXPECT_THAT(refusal_of({1, 1, 0}, kSegmentSize + 1), HasSubstr("not inside"));
  EXPECT_THAT(refusal_of({1, 1, kSegmentSize}, 1), HasSubstr("not inside"));
  EXPECT_THAT(refusal_of({1, 1, uint64_t{0} - 64}, 128), HasSubstr("not inside"));
  EXPECT_THAT(refusal_of({1, 1, kSegmentSize - 64}, UINT64_MAX), HasSubstr("not inside"));
  for (const auto& [offset, size] : {std::pair{8 * kLentSize, 3 * kLentSize},
                                     {uint64_t{0}, kSegmentSize},
                                     {9 * kLentSize, uint64_t{64}},
                                     {7 * kLentSize, kLentSize + 1},
                                     {11 * kLentSize - 64, uint64_t{64}}}) {
    EXPECT_THAT(refusal_of({1, 6, offset}, size), HasSubstr("overlaps a block that is lent"));
  }
  EXPECT_TRUE(borrow({1, 1, 11 * kLentSize}, 64).ok()) << "beside it";
  EXPECT_TRUE(borrow({1, 1, 7 * kLentSize}, kLentSize).ok()) << "beside it";
  block.reset();
  EXPECT_THAT(refusal_of(lending, 64), HasSubstr("was lent before with generation 5"));
  EXPECT_THAT(refusal_of({1, 4, 10 * kLentSize}, 64), HasSubstr("was lent before"));
  EXPECT_THAT(refusal_of({1, 0, 20 * kLentSize}, 64), HasSubstr("was lent before"));
  EXPECT_TRUE(borrow({1, 6, 8 * kLentSize}, kLentSize).ok());
}

TEST_F(BorrowedSegmentsTest, TwoPayloadsInOneUnitAreAViolation) {
  const auto block = borrow({1, 1, 0}, 64);
  EXPECT_THAT(refusal_of({1, 2, 128}, 64), HasSubstr("overlaps"));
}

TEST_F(BorrowedSegmentsTest, ARefusedDescriptorChangesNothing) {
  refusal_of({1, 7, 32}, 64);
  refusal_of({1, 7, 0}, kSegmentSize + 1);
  EXPECT_EQ(borrowed_.gauges().borrowed_blocks, 0u);
  EXPECT_THAT(sink_->all(), IsEmpty()) << "what was never borrowed is not given back";
  EXPECT_TRUE(borrow({1, 1, 0}, 64).ok());
}

TEST_F(BorrowedSegmentsTest, SaysWhenTheQuotaIsUsedUp) {
  auto first = borrow({1, 1, 0}, 8 * kLentSize);
  EXPECT_TRUE(first->keep);
  EXPECT_FALSE(borrow({1, 2, 8 * kLentSize}, 64)->keep);
  first->owner.reset();
  EXPECT_TRUE(borrow({1, 3, 8 * kLentSize}, 64)->keep);
}

TEST_F(BorrowedSegmentsTest, GivesBackThroughTheConnectionThatTheBlockCameThrough) {
  const auto later = std::make_shared<RecordedReturns>();
  auto a = borrow({1, 1, 0}, 64);
  auto b = borrowed_.borrow({1, 2, kLentSize}, 64, later, second(0));
  a->owner.reset();
  b->owner.reset();
  EXPECT_THAT(sink_->all(), ElementsAre(Lending{1, 1, 0}));
  EXPECT_THAT(later->all(), ElementsAre(Lending{1, 2, kLentSize}));
}

// ---- segments

TEST_F(BorrowedSegmentsTest, AcceptsTheSameSegmentAgainAndNoOther) {
  const auto block = borrow({1, 1, 0}, 64);
  EXPECT_TRUE(borrowed_.add_segment(1, same(owner_)).ok());
  EXPECT_FALSE(borrow({1, 2, 0}, 64).ok()) << "what is borrowed is still known";
  const absl::Status other =
      borrowed_.add_segment(1, SealedMemory::create("other", kSegmentSize).value());
  EXPECT_TRUE(absl::IsInvalidArgument(other)) << other;
  EXPECT_TRUE(absl::IsInvalidArgument(borrowed_.add_segment(2, SealedMemory())));
  EXPECT_EQ(borrowed_.gauges().segments, 1u);
}

TEST_F(BorrowedSegmentsTest, MapsNoMoreThanItMay) {
  const absl::Status status =
      borrowed_.add_segment(2, SealedMemory::create("large", 4 * kSegmentSize).value());
  EXPECT_TRUE(absl::IsResourceExhausted(status)) << status;
  EXPECT_TRUE(
      borrowed_.add_segment(2, SealedMemory::create("fits", 3 * kSegmentSize).value()).ok());
}

TEST_F(BorrowedSegmentsTest, ASegmentIsRetiredOnlyIfNothingOfItIsBorrowed) {
  auto block = borrow({1, 1, 0}, 64);
  EXPECT_TRUE(absl::IsInvalidArgument(borrowed_.retire_segment(1)));
  EXPECT_TRUE(absl::IsNotFound(borrowed_.retire_segment(2)));
  block->owner.reset();
  EXPECT_TRUE(borrowed_.retire_segment(1).ok());
  EXPECT_EQ(borrowed_.gauges().mapped_bytes, 0u);
  EXPECT_THAT(refusal_of({1, 2, 0}, 64), HasSubstr("not handed over"));
}

TEST(BorrowedSegmentsEnd, ABlockOutlivesTheTableAndThePeer) {
  const auto sink = std::make_shared<RecordedReturns>();
  BorrowedSegments::Block block;
  {
    SealedMemory owner = SealedMemory::create("weft-borrowed-test", kSegmentSize).value();
    owner.data()[0] = std::byte{7};
    BorrowedSegments borrowed({});
    ASSERT_TRUE(borrowed.add_segment(1, same(owner)).ok());
    block = *borrowed.borrow({1, 1, 0}, kLentSize, sink, second(0));
  }
  EXPECT_EQ(block.data[0], std::byte{7});
  std::memset(block.data, 1, block.size);
  block.owner.reset();
  EXPECT_EQ(sink->all().size(), 1u);
}

// ---- copying out

TEST_F(BorrowedSegmentsTest, CopiedOutBytesAreThisProcessesOwn) {
  const Lending lending{1, 1, 4 * kLentSize};
  std::memset(owner_.data() + lending.offset, 1, 2 * kLentSize);
  auto block = borrow(lending, 2 * kLentSize);
  std::byte* const data = block->data;
  ASSERT_EQ(borrowed_.copy_out(1, second(0)), 2 * kLentSize);
  EXPECT_THAT(sink_->all(), ElementsAre(lending));
  std::memset(owner_.data() + lending.offset, 2, 2 * kLentSize);  // the owner uses it again
  EXPECT_EQ(data[0], std::byte{1});
  EXPECT_EQ(data[2 * kLentSize - 1], std::byte{1});
  data[0] = std::byte{3};
  EXPECT_EQ(owner_.data()[lending.offset], std::byte{2});
  EXPECT_EQ(borrowed_.gauges().private_bytes, 2 * kLentSize);
  EXPECT_EQ(borrowed_.gauges().borrowed_bytes, 0u);
  block->owner.reset();
  EXPECT_EQ(sink_->all().size(), 1u) << "it is not given back twice";
  EXPECT_EQ(borrowed_.gauges().private_bytes, 0u);
}

TEST_F(BorrowedSegmentsTest, ABlockInAShadowedRangeIsMappedApartAndThenInItsSegmentAgain) {
  auto old = borrow({1, 1, 4 * kLentSize}, 2 * kLentSize);
  std::byte* const data = old->data;
  ASSERT_GT(borrowed_.copy_out(1, second(0)), 0u);
  std::memset(owner_.data(), 5, kSegmentSize);
  auto apart = borrow({1, 2, 5 * kLentSize + 64}, 3 * kLentSize);
  ASSERT_TRUE(apart.ok()) << apart.status();
  EXPECT_NE(apart->data, data + kLentSize + 64);
  EXPECT_EQ(apart->data[0], std::byte{5});
  EXPECT_EQ(apart->data[3 * kLentSize - 1], std::byte{5});
  EXPECT_EQ(data[kLentSize + 64], std::byte{0});
  EXPECT_EQ(borrowed_.gauges().mapped_apart, 1u);

  ASSERT_EQ(borrowed_.copy_out(1, second(0)), 3 * kLentSize) << "it can be copied out as well";
  std::memset(owner_.data(), 6, kSegmentSize);
  EXPECT_EQ(apart->data[0], std::byte{5});
  apart->owner.reset();
  old->owner.reset();
  EXPECT_EQ(sink_->all().size(), 2u);

  const auto again = borrow({1, 3, 4 * kLentSize}, 2 * kLentSize);
  EXPECT_EQ(again->data, data) << "the range is shared again";
  EXPECT_EQ(again->data[0], std::byte{6});
  EXPECT_EQ(borrowed_.gauges().mapped_apart, 1u);
}

TEST_F(BorrowedSegmentsTest, CopiesOutTheOldestAndNoMoreThanIsAsked) {
  const auto a = borrow({1, 1, 0}, kLentSize, 1), b = borrow({1, 2, kLentSize}, kLentSize, 2),
             c = borrow({1, 3, 2 * kLentSize}, kLentSize, 3);
  EXPECT_EQ(borrowed_.copy_out(100, second(0)), 0u) << "all are too young";
  EXPECT_EQ(borrowed_.copy_out(100, second(2)), kLentSize);
  EXPECT_THAT(sink_->all(), ElementsAre(Lending{1, 1, 0}));
  EXPECT_EQ(borrowed_.copy_out(5 * kLentSize, second(2)), kLentSize);
  EXPECT_EQ(sink_->all().back(), (Lending{1, 2, kLentSize}));
  EXPECT_EQ(c->data[0], std::byte{0});
}

TEST_F(BorrowedSegmentsTest, ACopiedOutBlockOutlivesItsSegment) {
  auto block = borrow({1, 1, 0}, kLentSize);
  word(block->data, 0) = 77;
  ASSERT_GT(borrowed_.copy_out(1, second(0)), 0u);
  ASSERT_TRUE(borrowed_.retire_segment(1).ok());
  EXPECT_EQ(word(block->data, 0), 77u);
  block->owner.reset();
}

// The owner lends a block again in the very moment in which it comes back.
class LendsAgain : public ReturnSink {
 public:
  explicit LendsAgain(BorrowedSegments& borrowed) : borrowed_(borrowed) {}
  void give_back(const Lending& lending) override {
    ++returns_;
    next_ = borrowed_.borrow({lending.segment, lending.generation + 1, lending.offset}, kLentSize,
                             std::make_shared<RecordedReturns>(), second(0));
  }
  const absl::StatusOr<BorrowedSegments::Block>& next() const { return next_; }
  int returns() const { return returns_; }

 private:
  BorrowedSegments& borrowed_;
  absl::StatusOr<BorrowedSegments::Block> next_ = absl::UnknownError("nothing came back");
  int returns_ = 0;
};

TEST_F(BorrowedSegmentsTest, ABlockCanBeLentAgainAsSoonAsItIsGivenBack) {
  const auto dropped = std::make_shared<LendsAgain>(borrowed_);
  borrowed_.borrow({1, 1, 0}, kLentSize, dropped, second(0))->owner.reset();
  EXPECT_TRUE(dropped->next().ok()) << dropped->next().status();
  EXPECT_EQ(borrowed_.gauges().mapped_apart, 0u);

  const auto copied = std::make_shared<LendsAgain>(borrowed_);
  const auto block = borrowed_.borrow({1, 1, kLentSize}, kLentSize, copied, second(0));
  ASSERT_EQ(borrowed_.copy_out(2 * kLentSize, second(0)), 2 * kLentSize) << "the two oldest";
  ASSERT_TRUE(copied->next().ok()) << copied->next().status();
  EXPECT_NE(copied->next()->data, block->data) << "the range is shadowed";
  EXPECT_EQ(copied->returns(), 1);
}

// Threads count in the block, in every page, while it is copied out. Meanwhile another thread plays
// the owner, who uses the memory again once it is given back.
TEST_F(BorrowedSegmentsTest, CopyingOutLosesNoWrite) {
  constexpr size_t kWords = 32 * kLentSize / sizeof(uint64_t), kStride = 512;
  constexpr int kRounds = 20;
  for (int round = 0; round < kRounds; ++round) {
    const Lending lending{1, static_cast<uint32_t>(round + 1), 16 * kLentSize};
    std::memset(owner_.data() + lending.offset, 0, 32 * kLentSize);
    auto block = borrow(lending, 32 * kLentSize);
    ASSERT_TRUE(block.ok()) << block.status();
    std::atomic<bool> stop{false};
    std::atomic<int> running{0};
    std::vector<uint64_t> counts(2, 0);
    std::vector<std::thread> threads;
    for (size_t i = 0; i < counts.size(); ++i) {
      threads.emplace_back([&, i] {
        running.fetch_add(1);
        while (!stop.load()) {
          for (size_t at = 0; at < kWords; at += kStride) word(block->data, at).fetch_add(1);
          ++counts[i];
        }
      });
    }
    while (running.load() < 2) std::this_thread::yield();
    ASSERT_EQ(borrowed_.copy_out(1, second(0)), 32 * kLentSize);
    std::memset(owner_.data() + lending.offset, 0xff, 32 * kLentSize);
    stop = true;
    for (std::thread& thread : threads) thread.join();
    for (size_t at = 0; at < kWords; at += kStride) {
      ASSERT_EQ(word(block->data, at), counts[0] + counts[1]) << "word " << at;
    }
    block->owner.reset();
  }
  EXPECT_EQ(sink_->all().size(), static_cast<size_t>(kRounds));
  EXPECT_EQ(borrowed_.gauges().mapped_apart, 0u);
}

// Blocks die on one thread while another one copies them out.
TEST_F(BorrowedSegmentsTest, EachBlockIsGivenBackOnceWhateverTheThreadsDo) {
  constexpr int kBlocks = 400;
  std::atomic<bool> stop{false};
  std::vector<std::thread> copying;
  for (int i = 0; i < 2; ++i) {
    copying.emplace_back([&] {
      while (!stop.load()) borrowed_.copy_out(kLentSize, second(0));
    });
  }
  std::vector<BorrowedSegments::Block> blocks;
  for (uint32_t i = 0; i < kBlocks; ++i) {
    const auto lending_of = [](uint32_t n) { return Lending{1, n + 1, n * 7 % 64 * kLentSize}; };
    const Lending lending = lending_of(i);
    if (i >= 64) {
      // The owner lends a block again when it has come back. A thread that tries to copy it out may
      // let go of it last.
      blocks.erase(blocks.begin());
      while (!sink_->has(lending_of(i - 64))) std::this_thread::yield();
    }
    absl::StatusOr<BorrowedSegments::Block> block = borrow(lending, kLentSize);
    ASSERT_TRUE(block.ok()) << block.status();
    word(block->data, 0) = i;
    ASSERT_EQ(word(block->data, 0), i);
    blocks.push_back(*std::move(block));
  }
  stop = true;
  for (std::thread& thread : copying) thread.join();
  blocks.clear();
  const std::vector<Lending> all = sink_->all();
  ASSERT_EQ(all.size(), static_cast<size_t>(kBlocks));
  EXPECT_EQ(std::set<Lending>(all.begin(), all.end()).size(), all.size());
  EXPECT_EQ(borrowed_.gauges().borrowed_blocks, 0u);
  EXPECT_EQ(borrowed_.gauges().private_bytes, 0u);
}

}  // namespace
}  // namespace weft
