#include "weft/shm/byte_ring.h"

#include <algorithm>
#include <functional>
#include <string>
#include <vector>

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "weft/tests/shm/ring_ends.h"

namespace weft {
namespace {

using ::testing::HasSubstr;
using namespace ring_test;

// Moves both ends to this position with records of 16 bytes.
void advance(Ends& ends, size_t bytes) {
  for (size_t i = 0; i < bytes / 16; ++i) {
    ASSERT_TRUE(write(ends.writer, 0, i));
    expect_next(ends.reader, 0, i);
    ends.reader.release();
  }
}

TEST(ByteRingTest, AllZerosIsAnEmptyRing) {
  SharedRing ring(1024);
  Ends ends(ring);
  expect_nothing(ends.reader);
  EXPECT_FALSE(ends.reader.release());
  EXPECT_FALSE(ends.writer.commit());
  EXPECT_EQ(ends.writer.largest(), 240u);
}

TEST(ByteRingTest, ReturnsRecordsOfAnySizeInOrder) {
  SharedRing ring(4096);
  Ends ends(ring);
  const size_t sizes[] = {0, 1, 15, 16, 17, 200, ends.writer.largest()};
  for (size_t i = 0; i < std::size(sizes); ++i) ASSERT_TRUE(write(ends.writer, sizes[i], i));
  for (size_t i = 0; i < std::size(sizes); ++i) expect_next(ends.reader, sizes[i], i);
  expect_nothing(ends.reader);
}

TEST(ByteRingTest, ShowsNoRecordBeforeCommitAndThenAll) {
  SharedRing ring(1024);
  Ends ends(ring);
  ASSERT_TRUE(reserve(ends.writer, 10, 0));
  ASSERT_TRUE(reserve(ends.writer, 20, 1));
  expect_nothing(ends.reader);
  EXPECT_TRUE(ends.writer.commit());
  EXPECT_FALSE(ends.writer.commit());
  expect_next(ends.reader, 10, 0);
  expect_next(ends.reader, 20, 1);
}

TEST(ByteRingTest, AFullRingHasNoRoomUntilRecordsAreReleased) {
  SharedRing ring(256);
  Ends ends(ring);
  for (uint64_t i = 0; i < 4; ++i) ASSERT_TRUE(write(ends.writer, 48, i));
  EXPECT_FALSE(reserve(ends.writer, 0, 4));
  expect_next(ends.reader, 48, 0);
  EXPECT_FALSE(reserve(ends.writer, 48, 4)) << "the record that was read is not released yet";
  ends.reader.release();
  EXPECT_TRUE(write(ends.writer, 48, 4));
  EXPECT_FALSE(reserve(ends.writer, 0, 5));
  for (uint64_t i = 1; i < 5; ++i) expect_next(ends.reader, 48, i);
}

TEST(ByteRingTest, ARecordThatDoesNotFitBeforeTheEndBeginsAtTheBeginning) {
  SharedRing ring(256);
  Ends ends(ring);
  advance(ends, 256 - 32);
  ASSERT_TRUE(reserve(ends.writer, 17, 3));  // 48 bytes, and 32 are left
  EXPECT_EQ(ring.word(0), uint64_t{17} | uint64_t{4} << 32);
  ends.writer.commit();
  expect_next(ends.reader, 17, 3);
  ends.reader.release();
  EXPECT_EQ(ring.header->head.load(), 256u + 48u);
}

TEST(ByteRingTest, AnyRecordFitsWhereverHalfOfTheRingIsFree) {
  for (size_t start = 0; start < 1024; start += 16) {
    SharedRing ring(1024);
    Ends ends(ring);
    advance(ends, start);
    for (uint64_t i = 0; i < 512 / 16; ++i) ASSERT_TRUE(write(ends.writer, 0, i));
    EXPECT_TRUE(write(ends.writer, ends.writer.largest(), 7)) << "from position " << start;
  }
}

TEST(ByteRingTest, ContentStaysAfterItsSpaceIsUsedAgain) {
  SharedRing ring(256);
  Ends ends(ring);
  ASSERT_TRUE(write(ends.writer, 48, 0));
  const auto record = ends.reader.next();
  ASSERT_TRUE(record.ok() && record->has_value());
  ends.reader.release();
  std::fill_n(ring.bytes.get(), ring.size, std::byte{0xff});
  expect_filled((*record)->content, 0);
}

TEST(ByteRingTest, AWriterThatAsksForSpaceIsWokenOnceAtHalf) {
  SharedRing ring(256);
  Ends ends(ring);
  for (uint64_t i = 0; i < 16; ++i) ASSERT_TRUE(write(ends.writer, 0, i));
  ASSERT_TRUE(asks(ends.writer));
  for (uint64_t i = 0; i < 16; ++i) {
    expect_next(ends.reader, 0, i);
    EXPECT_EQ(ends.reader.release(), i == 7) << "after record " << i;
  }
}

TEST(ByteRingTest, AWriterThatDoesNotAskIsNotWoken) {
  SharedRing ring(256);
  Ends ends(ring);
  for (uint64_t i = 0; i < 16; ++i) ASSERT_TRUE(write(ends.writer, 0, i));
  EXPECT_FALSE(reserve(ends.writer, 0, 16));
  for (uint64_t i = 0; i < 16; ++i) {
    expect_next(ends.reader, 0, i);
    EXPECT_FALSE(ends.reader.release());
  }
}

TEST(ByteRingTest, AWriterSeesSpaceThatCameBeforeItAsked) {
  SharedRing ring(256);
  Ends ends(ring);
  for (uint64_t i = 0; i < 16; ++i) ASSERT_TRUE(write(ends.writer, 0, i));
  for (uint64_t i = 0; i < 8; ++i) expect_next(ends.reader, 0, i);
  EXPECT_FALSE(ends.reader.release());
  EXPECT_FALSE(asks(ends.writer));
  EXPECT_EQ(ring.header->wants_space.load(), 0u);
  EXPECT_TRUE(write(ends.writer, ends.writer.largest(), 16));
}

TEST(ByteRingTest, AWriterMustPublishBeforeItAsksForSpace) {
  SharedRing ring(256);
  Ends ends(ring);
  ASSERT_TRUE(reserve(ends.writer, 0, 0));
  EXPECT_TRUE(absl::IsFailedPrecondition(ends.writer.request_space().status()));
  ends.writer.commit();
  EXPECT_TRUE(ends.writer.request_space().ok());
}

TEST(ByteRingTest, RefusesRecordsOutsideTheLimitsAndGoesOn) {
  SharedRing ring(256);
  Ends ends(ring);
  EXPECT_TRUE(absl::IsInvalidArgument(ends.writer.reserve(1, 49).status()));
  EXPECT_TRUE(absl::IsInvalidArgument(ends.writer.reserve(1, SIZE_MAX).status()));
  EXPECT_TRUE(absl::IsInvalidArgument(ends.writer.reserve(0, 1).status()));
  EXPECT_TRUE(write(ends.writer, 48, 0));
}

TEST(ByteRingTest, KnowsWhichSizesARingMayHave) {
  for (const size_t size : {256ul, 1024ul, 1ul << 30}) EXPECT_TRUE(valid_ring_size(size)) << size;
  for (const size_t size : {0ul, 128ul, 255ul, 257ul, 1000ul, 1ul << 31, SIZE_MAX}) {
    EXPECT_FALSE(valid_ring_size(size)) << size;
  }
}

// ---- A peer that breaks the protocol

// A violation: what the peer does to a ring of 1024 bytes that holds a record of 100 bytes at
// position 0 and one of 20 bytes at 128, and what the error says.
struct Violation {
  std::string what;
  std::function<void(SharedRing&)> corrupt;
  std::string error;
};
uint64_t head_word(uint64_t size, uint64_t kind, uint64_t zero = 0) {
  return size | kind << 32 | zero << 48;
}

TEST(ByteRingTest, TheReaderRefusesEveryViolation) {
  const std::vector<Violation> violations = {
      {"zero is not zero", [](auto& ring) { ring.set_word(0, head_word(100, 1, 2)); },
       "the record at 0: zero is 2, must be exactly 0"},
      {"an old serial", [](auto& ring) { ring.set_word(8, 0); },
       "the record at 0: serial is 0, must be exactly 1"},
      {"a later serial", [](auto& ring) { ring.set_word(8, 2); },
       "the record at 0: serial is 2, must be exactly 1"},
      {"an unknown kind", [](auto& ring) { ring.set_word(0, head_word(100, 6)); },
       "the record at 0: kind is 6, must be at most 5"},
      {"more than a quarter", [](auto& ring) { ring.set_word(0, head_word(241, 1)); },
       "the record at 0: size is 241, must be at most 240"},
      {"the largest size", [](auto& ring) { ring.set_word(0, head_word(UINT32_MAX, 1)); },
       "the record at 0: size is 4294967295, must be at most 240"},
      {"more than what is published", [](auto& ring) { ring.set_word(0, head_word(161, 1)); },
       "the record at 0: size is 161, must be at most what is there, 160"},
      {"padding at the beginning", [](auto& ring) { ring.set_word(0, head_word(100, 0)); },
       "the record at 0: size of the padding is 100, must be exactly 1008"},
      {"padding over the whole ring", [](auto& ring) { ring.set_word(0, head_word(1008, 0)); },
       "the record at 0: size is 1008, must be at most 240"},
      {"a position that is no multiple", [](auto& ring) { ring.header->tail = 168; },
       "the writer's position is 168: must be a multiple of 16 from 0 to 1024"},
      {"more than the ring has", [](auto& ring) { ring.header->tail = 1040; },
       "the writer's position is 1040: must be a multiple of 16 from 0 to 1024"},
      {"the greatest position", [](auto& ring) { ring.header->tail = UINT64_MAX - 15; },
       "must be a multiple of 16 from 0 to 1024"},
  };
  for (const Violation& violation : violations) {
    SCOPED_TRACE(violation.what);
    SharedRing ring(1024);
    Ends ends(ring);
    ASSERT_TRUE(write(ends.writer, 100, 0));
    ASSERT_TRUE(write(ends.writer, 20, 1));
    violation.corrupt(ring);
    const absl::Status refused = ends.reader.next().status();
    EXPECT_TRUE(absl::IsInvalidArgument(refused)) << refused;
    EXPECT_THAT(std::string(refused.message()), HasSubstr(violation.error));
    // It is over, even if the peer mends what it has done.
    ring.header->tail = 176;
    ring.set_word(0, head_word(100, 1));
    ring.set_word(8, 1);
    EXPECT_EQ(ends.reader.next().status(), refused);
    EXPECT_FALSE(ends.reader.release());
    EXPECT_EQ(ring.header->head.load(), 0u);
  }
}

TEST(ByteRingTest, TheReaderRefusesARecordAcrossTheEnd) {
  SharedRing ring(256);
  Ends ends(ring);
  advance(ends, 256 - 32);
  ASSERT_TRUE(reserve(ends.writer, 16, 0));
  ASSERT_TRUE(reserve(ends.writer, 16, 1));
  ends.writer.commit();
  ring.set_word(256 - 32, head_word(17, 1));
  EXPECT_THAT(std::string(ends.reader.next().status().message()),
              HasSubstr("the record at 224: size is 17, must be at most what is there, 16"));
}

TEST(ByteRingTest, TheReaderRefusesPaddingThatDoesNotEndTheRing) {
  for (const uint64_t size : {0, 15, 17, 32}) {
    SharedRing ring(256);
    Ends ends(ring);
    advance(ends, 256 - 32);
    ASSERT_TRUE(write(ends.writer, 17, 0));
    ring.set_word(256 - 32, head_word(size, 0));
    EXPECT_THAT(
        std::string(ends.reader.next().status().message()),
        HasSubstr("size of the padding is " + std::to_string(size) + ", must be exactly 16"));
  }
}

TEST(ByteRingTest, TheReaderRefusesAPositionThatGoesBack) {
  SharedRing ring(256);
  Ends ends(ring);
  ASSERT_TRUE(write(ends.writer, 0, 0));
  ASSERT_TRUE(write(ends.writer, 0, 1));
  expect_next(ends.reader, 0, 0);
  ring.header->tail = 16;
  expect_next(ends.reader, 0, 1);  // it was published at the last look
  EXPECT_THAT(std::string(ends.reader.next().status().message()),
              HasSubstr("the writer's position is 16: must be a multiple of 16 from 32"));
  EXPECT_FALSE(ends.reader.release()) << "after a violation the shared memory is left alone";
  EXPECT_EQ(ring.header->head.load(), 0u);
}

TEST(ByteRingTest, TheReaderRefusesMoreThanItHasReleased) {
  SharedRing ring(256);
  Ends ends(ring);
  for (uint64_t i = 0; i < 16; ++i) ASSERT_TRUE(write(ends.writer, 0, i));
  for (uint64_t i = 0; i < 16; ++i) expect_next(ends.reader, 0, i);
  ring.header->tail = 256 + 16;
  EXPECT_THAT(std::string(ends.reader.next().status().message()),
              HasSubstr("the writer's position is 272: must be a multiple of 16 from 256 to 256"));
}

TEST(ByteRingTest, TheWriterRefusesEveryPositionThatLies) {
  // The writer knows that 96 bytes are free again. It has published 256, and reserved 96 more.
  for (const uint64_t head : {uint64_t{0}, uint64_t{80}, uint64_t{100}, uint64_t{272},
                              uint64_t{352}, UINT64_MAX - 15, UINT64_MAX}) {
    SCOPED_TRACE(head);
    SharedRing ring(256);
    Ends ends(ring);
    for (uint64_t i = 0; i < 16; ++i) ASSERT_TRUE(write(ends.writer, 0, i));
    for (uint64_t i = 0; i < 6; ++i) expect_next(ends.reader, 0, i);
    ends.reader.release();
    for (uint64_t i = 0; i < 6; ++i) ASSERT_TRUE(reserve(ends.writer, 0, i));
    ring.header->head = head;
    const absl::Status refused = ends.writer.reserve(1, 0).status();
    EXPECT_TRUE(absl::IsInvalidArgument(refused)) << refused;
    EXPECT_THAT(std::string(refused.message()),
                HasSubstr(": must be a multiple of 16 from 96 to 256"));
    ring.header->head = 256;
    EXPECT_EQ(ends.writer.reserve(1, 0).status(), refused);
    EXPECT_EQ(ends.writer.request_space().status(), refused);
  }
}

TEST(ByteRingTest, AskingForSpaceChecksThePosition) {
  SharedRing ring(256);
  Ends ends(ring);
  ASSERT_TRUE(write(ends.writer, 0, 0));
  ring.header->head = 32;
  EXPECT_TRUE(absl::IsInvalidArgument(ends.writer.request_space().status()));
}

}  // namespace
}  // namespace weft
