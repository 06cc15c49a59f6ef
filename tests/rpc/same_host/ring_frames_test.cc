// Frames through a ring: which records they become, their order, and what the reader refuses.
#include "weft/rpc/same_host/connection/ring_frames.h"

#include <algorithm>
#include <limits>

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "weft/tests/rpc/same_host/frame_ring.h"

namespace weft {
namespace {

using rpc_internal::encode_head;
using rpc_internal::kCloseRecord;
using rpc_internal::kFrameRecord;
using rpc_internal::kLastRingRecord;
using rpc_internal::kMostStreams;
using rpc_internal::kOpenRecord;
using rpc_internal::kPieceRecord;
using ::testing::ElementsAre;
using testing::expect_frame;
using testing::frame_with;
using testing::FrameRing;
using ::testing::HasSubstr;
using ::testing::SizeIs;

constexpr size_t kRing = 4096;  // records of up to 1008 bytes

template <class T>
std::string word(T value) {
  return std::string(reinterpret_cast<const char*>(&value), sizeof(value));
}
std::string open_record(uint32_t number, uint32_t head, uint64_t payloads) {
  return word(number) + word(head) + word(payloads);
}
std::string piece_record(uint32_t number, const std::string& bytes) {
  return word(number) + word(uint32_t{0}) + bytes;
}
// The kinds of the records in the ring, without padding.
std::vector<int> kinds_in(FrameRing& ring) {
  RingReader reader(*ring.header, {ring.memory.get(), ring.size}, kLastRingRecord);
  std::vector<int> kinds;
  while (true) {
    const auto record = reader.next();
    EXPECT_TRUE(record.ok()) << record.status();
    if (!record.ok() || !record->has_value()) return kinds;
    kinds.push_back((*record)->kind);
  }
}
void expect_refusal(const absl::Status& status, const std::string& text) {
  EXPECT_EQ(status.code(), absl::StatusCode::kInvalidArgument) << status;
  EXPECT_THAT(std::string(status.message()), HasSubstr(text));
}

TEST(RingFramesTest, AFrameThatFitsIsOneRecordAndALargerOneIsCut) {
  FrameRing ring(kRing);
  const size_t head = rpc_internal::head_bytes(*frame_with(1, {0}));
  const FramePtr fits = frame_with(1, {1008 - head});
  const FramePtr larger = frame_with(2, {1009 - rpc_internal::head_bytes(*frame_with(2, {0}))});
  EXPECT_TRUE(ring.is_small(*fits));
  EXPECT_FALSE(ring.is_small(*larger));
  ring.writer.push(fits);
  ring.writer.push(larger);
  EXPECT_TRUE(ring.pump());
  EXPECT_THAT(kinds_in(ring), ElementsAre(kFrameRecord, kOpenRecord, kPieceRecord, kPieceRecord));
  ASSERT_TRUE(ring.read().ok());
  ASSERT_THAT(ring.frames, SizeIs(2));
  expect_frame(ring.frames[0], *fits);
  expect_frame(ring.frames[1], *larger);
  EXPECT_THAT(ring.done, ElementsAre(fits, larger));
}

TEST(RingFramesTest, PayloadsOfNoBytesArriveInEachPlace) {
  FrameRing ring(size_t{1} << 16);
  const std::vector<std::vector<size_t>> shapes = {
      {}, {0}, {0, 0}, {0, 5, 0}, {0, 20000, 0, 0, 20000, 0}, {20000, 0}};
  for (size_t i = 0; i < shapes.size(); ++i) ring.writer.push(frame_with(i, shapes[i]));
  while (!ring.writer.idle()) {
    ring.pump();
    ASSERT_TRUE(ring.read().ok());
  }
  ASSERT_THAT(ring.frames, SizeIs(shapes.size()));
  for (const Frame& frame : ring.frames) {
    expect_frame(frame, *frame_with(frame.header.sequence, shapes[frame.header.sequence]));
    for (const Payload& payload : frame.payloads) EXPECT_NE(payload.data, nullptr);
  }
}

TEST(RingFramesTest, ASizeThatOverflowsASumIsALargeFrame) {
  FrameRing ring(kRing);
  Frame frame;
  std::byte one{};
  const size_t half = std::numeric_limits<size_t>::max() / 2 + 1;
  frame.payloads = {{&one, half, nullptr}, {&one, half, nullptr}};
  EXPECT_FALSE(ring.is_small(frame));
}

TEST(RingFramesTest, SmallFramesGoBeforeTheNextPieceAndKeepTheirOrder) {
  FrameRing ring(kRing);
  ring.writer.push(frame_with(1, {20000}));
  ring.pump();
  ASSERT_FALSE(ring.writer.idle());
  for (uint64_t i = 2; i <= 5; ++i) ring.writer.push(frame_with(i, {}));
  while (!ring.writer.idle()) {
    ASSERT_TRUE(ring.read().ok());
    ring.pump();
  }
  ASSERT_TRUE(ring.read().ok());
  EXPECT_THAT(ring.numbers(), ElementsAre(2, 3, 4, 5, 1));
}

TEST(RingFramesTest, LargeFramesTakeTurns) {
  FrameRing ring(kRing);
  ring.writer.push(frame_with(1, {100000}));
  ring.writer.push(frame_with(2, {1500}));
  while (ring.frames.empty()) {
    ring.pump();
    ASSERT_TRUE(ring.read().ok());
  }
  EXPECT_THAT(ring.numbers(), ElementsAre(2));
}

TEST(RingFramesTest, AtMost16LargeFramesAreUnderWay) {
  FrameRing ring(kRing);
  for (uint64_t i = 0; i < kMostStreams + 3; ++i) ring.writer.push(frame_with(i, {3000}));
  while (!ring.writer.idle()) {
    ring.pump();
    ASSERT_TRUE(ring.read().ok());  // it refuses a 17th
  }
  EXPECT_THAT(ring.frames, SizeIs(kMostStreams + 3));
}

TEST(RingFramesTest, ALargeFrameMovesHoweverManySmallOnesCome) {
  FrameRing ring(kRing);
  ring.writer.push(frame_with(0, {5000}));
  uint64_t next = 1;
  const auto has_large = [&] {
    const std::vector<uint64_t> numbers = ring.numbers();
    return std::find(numbers.begin(), numbers.end(), 0) != numbers.end();
  };
  for (int visit = 0; visit < 200 && !has_large(); ++visit) {
    for (int i = 0; i < 40; ++i) ring.writer.push(frame_with(next++, {200}));
    ring.pump();
    ASSERT_TRUE(ring.read().ok());
  }
  EXPECT_TRUE(has_large());
}

TEST(RingFramesTest, TheCountsGoUpToTheCostOfTheFrames) {
  FrameRing ring(kRing);
  const FramePtr small = frame_with(1, {10}), large = frame_with(2, {9000});
  ring.writer.push(small);
  ring.writer.push(large);
  EXPECT_EQ(ring.writer.small_bytes().taken, small->cost());
  EXPECT_EQ(ring.writer.large_bytes().taken, large->cost());
  ring.pump();
  const uint64_t part = ring.writer.large_bytes().written;
  EXPECT_GT(part, 0u);
  EXPECT_LT(part, large->cost());
  while (!ring.writer.idle()) {
    ASSERT_TRUE(ring.read().ok());
    ring.pump();
  }
  EXPECT_EQ(ring.writer.small_bytes().written, small->cost());
  EXPECT_EQ(ring.writer.large_bytes().written, large->cost());
}

TEST(RingFramesTest, CloseComesAfterAllFramesAndIsTheLastRecord) {
  FrameRing ring(kRing);
  ring.writer.push(frame_with(1, {5000}));
  ring.writer.push(frame_with(2, {}));
  ring.writer.push_close();
  bool closed = false;
  while (!closed) {
    ring.pump();
    const auto result = ring.read();
    ASSERT_TRUE(result.ok()) << result.status();
    closed = result->closed;
    EXPECT_EQ(closed, ring.frames.size() == 2 && ring.writer.idle());
  }
  EXPECT_TRUE(ring.read_record(kFrameRecord, "not even read").ok());
  EXPECT_THAT(ring.frames, SizeIs(2));
}

TEST(RingFramesTest, AReadStopsAtItsLimitAndSaysThatThereIsMore) {
  FrameRing ring(kRing);
  for (uint64_t i = 1; i <= 4; ++i) ring.writer.push(frame_with(i, {100}));
  ring.pump();
  auto result = ring.read(1);
  ASSERT_TRUE(result.ok());
  EXPECT_TRUE(result->more);
  EXPECT_THAT(ring.numbers(), ElementsAre(1));
  result = ring.read();
  ASSERT_TRUE(result.ok());
  EXPECT_FALSE(result->more);
  EXPECT_THAT(ring.numbers(), ElementsAre(1, 2, 3, 4));
}

TEST(RingFramesTest, AWriterWithoutRoomIsWoken) {
  FrameRing ring(kRing);
  for (uint64_t i = 1; i <= 10; ++i) ring.writer.push(frame_with(i, {500}));
  ring.pump();
  ASSERT_FALSE(ring.writer.idle());
  EXPECT_FALSE(ring.pump());  // there is no room, so nothing is published
  const auto result = ring.read();
  ASSERT_TRUE(result.ok());
  EXPECT_TRUE(result->wake_writer);
  EXPECT_TRUE(ring.pump());
}

TEST(RingFramesTest, DropGivesBackAllFramesThatAreNotThrough) {
  FrameRing ring(kRing);
  std::vector<FramePtr> all;
  for (uint64_t i = 1; i <= 30; ++i) all.push_back(frame_with(i, {i % 2 == 0 ? 3000u : 300u}));
  for (const FramePtr& frame : all) ring.writer.push(frame);
  ring.pump();
  ring.writer.drop(ring.done);
  EXPECT_TRUE(ring.writer.idle());
  EXPECT_THAT(ring.done, ::testing::UnorderedElementsAreArray(all));
}

TEST(RingFramesTest, TheReaderDropsTheMemoryOfUnfinishedFrames) {
  FrameRing ring(kRing);
  ring.writer.push(frame_with(1, {size_t{1} << 17}));
  ring.pump();
  ASSERT_TRUE(ring.read().ok());
  EXPECT_EQ(ring.pool.idle_bytes(), 0u);
  ring.reader.drop();
  EXPECT_GE(ring.pool.idle_bytes(), size_t{1} << 17);
}

// ---- what the reader refuses

TEST(RingFramesTest, ASmallFrameMustBeWhole) {
  const std::string head = encode_head(*frame_with(3, {8}));
  expect_refusal(FrameRing(kRing).read_record(kFrameRecord, "short"), "shorter than its header");
  expect_refusal(FrameRing(kRing).read_record(kFrameRecord, std::string(200, 'x')), "frame magic");
  expect_refusal(FrameRing(kRing).read_record(kFrameRecord, head.substr(0, head.size() - 1)),
                 "a frame ends inside its head");
  expect_refusal(FrameRing(kRing).read_record(kFrameRecord, head + "1234567"),
                 "payloads of 8 bytes in a record with 7");
  expect_refusal(FrameRing(kRing).read_record(kFrameRecord, head + "123456789"),
                 "payloads of 8 bytes in a record with 9");
  std::string kind = head + "12345678";
  kind[4] = 99;
  expect_refusal(FrameRing(kRing).read_record(kFrameRecord, kind), "frame kind");
}

TEST(RingFramesTest, ALargeFrameBeginsOnceAndWithinTheLimits) {
  const TransportLimits limits{.max_frame_bytes = 100000};
  const auto open = [&](const std::string& content) {
    return FrameRing(kRing, limits).read_record(kOpenRecord, content);
  };
  EXPECT_TRUE(open(open_record(1, 104, 100000 - 104)).ok());
  expect_refusal(open("short"), "begins with 5 bytes");
  expect_refusal(open(open_record(1, 103, 8)), "head of 103 bytes");
  expect_refusal(open(open_record(1, 100001, 0)), "outside of the limit of 100000");
  expect_refusal(open(open_record(1, 104, 100000 - 103)), "outside of the limit of 100000");
  expect_refusal(open(open_record(1, 104, ~uint64_t{0})), "outside of the limit of 100000");
  FrameRing twice(kRing);
  EXPECT_TRUE(twice.read_record(kOpenRecord, open_record(7, 104, 8)).ok());
  expect_refusal(twice.read_record(kOpenRecord, open_record(7, 104, 8)),
                 "large frame 7 begins twice");
  FrameRing many(kRing);
  for (uint32_t i = 0; i < kMostStreams; ++i) {
    EXPECT_TRUE(many.read_record(kOpenRecord, open_record(i, 104, 8)).ok());
  }
  expect_refusal(many.read_record(kOpenRecord, open_record(99, 104, 8)),
                 "more than 16 large frames");
}

TEST(RingFramesTest, APieceBelongsToAFrameAndFitsIt) {
  const std::string head = encode_head(*frame_with(0, {10}));
  const uint32_t size = static_cast<uint32_t>(head.size());
  const auto pieces = [&](uint64_t announced, const std::vector<std::string>& records) {
    FrameRing ring(kRing);
    absl::Status status = ring.read_record(kOpenRecord, open_record(1, size, announced));
    for (const std::string& record : records) {
      if (status.ok()) status = ring.read_record(kPieceRecord, record);
    }
    return status;
  };
  EXPECT_TRUE(pieces(10, {piece_record(1, head), piece_record(1, "0123456789")}).ok());
  expect_refusal(pieces(10, {piece_record(1, "")}), "a damaged piece");
  expect_refusal(pieces(10, {word(1) + word(1) + "x"}), "a damaged piece");
  expect_refusal(pieces(10, {piece_record(2, "x")}), "large frame 2, which has not begun");
  expect_refusal(pieces(11, {piece_record(1, head)}), "payloads of 10 bytes and announced 11");
  expect_refusal(pieces(10, {piece_record(1, head), piece_record(1, "0123456789a")}),
                 "large frame 1 has more bytes than its payloads");
  expect_refusal(pieces(10, {piece_record(1, head + "0123456789"), piece_record(1, "a")}),
                 "large frame 1, which has not begun");
  expect_refusal(pieces(10, {piece_record(1, std::string(size, 'x'))}), "frame magic");
}

TEST(RingFramesTest, ACloseIsEmptyAndLeavesNoFrameUnfinished) {
  expect_refusal(FrameRing(kRing).read_record(kCloseRecord, "x"), "a close with 1 bytes");
  FrameRing ring(kRing);
  EXPECT_TRUE(ring.read_record(kOpenRecord, open_record(1, 104, 8)).ok());
  expect_refusal(ring.read_record(kCloseRecord, ""), "1 large frames are unfinished");
}

}  // namespace
}  // namespace weft
