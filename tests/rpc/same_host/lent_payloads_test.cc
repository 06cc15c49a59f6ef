// Payloads that travel in lent blocks: who has the memory, and when it comes back.
#include <algorithm>
#include <chrono>
#include <cstring>
#include <memory>
#include <span>
#include <string>
#include <vector>

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "weft/tests/rpc/same_host/connected_ends.h"
#include "weft/tests/rpc/same_host/frame_ring.h"

namespace weft {
namespace {

using rpc_internal::PairMemory;
using testing::expect_frame;
using testing::frame_with;
using ::testing::HasSubstr;
using ::testing::SizeIs;

class LentPayloadsTest : public testing::ConnectedEnds {
 protected:
  static constexpr size_t kLarge = 100000;

  uint64_t lent_bytes(size_t side) { return arenas_[side]->statistics().blocks.lent_bytes; }
  uint64_t used_bytes(size_t side) {
    const BlockTable::Gauges blocks = arenas_[side]->statistics().blocks;
    return blocks.held_bytes + blocks.lent_bytes;
  }
};

TEST_F(LentPayloadsTest, ALargePayloadArrivesInABlockAndComesBackWhenItIsDropped) {
  const auto owner = std::make_shared<int>();
  const FramePtr sent = frame_with(1, {kLarge, 10, 0, 20000}, owner);
  ASSERT_TRUE(far_->send(FrameBatch{sent}));
  EXPECT_EQ(sent.use_count(), 1) << "a copy was made, so the connection drops the frame at once";
  EXPECT_GE(lent_bytes(1), kLarge + 20000);
  EXPECT_FALSE(visit(*near_).has_value());
  ASSERT_THAT(frames_, SizeIs(1));
  expect_frame(frames_[0], *sent);
  const std::vector<Payload>& payloads = frames_[0].payloads;
  EXPECT_TRUE(payloads[0].lent);
  EXPECT_FALSE(payloads[1].lent);
  EXPECT_FALSE(payloads[2].lent);
  EXPECT_TRUE(payloads[3].lent);
  EXPECT_EQ(borrowed_[0]->gauges().borrowed_blocks, 2u);
  frames_.clear();
  arenas_[1]->drain();
  EXPECT_EQ(used_bytes(1), 0u);
  EXPECT_EQ(borrowed_[0]->gauges().borrowed_blocks, 0u);
}

TEST_F(LentPayloadsTest, ACopyThatWasMadeForThePeerIsLentWithoutAnother) {
  const FramePtr plain = frame_with(1, {kLarge});
  auto sent = std::make_shared<Frame>(*plain);
  std::optional<Payload> copy = far_->copy_payload(plain->payloads[0].data, kLarge);
  ASSERT_TRUE(copy.has_value());
  sent->payloads[0] = *std::exchange(copy, std::nullopt);
  ASSERT_TRUE(far_->send(FrameBatch{sent}));
  EXPECT_EQ(arenas_[1]->statistics().blocks.lent_blocks, 1u);
  EXPECT_EQ(arenas_[1]->statistics().blocks.held_blocks, 0u);
  // A repetition of the frame, while the far end has the block: it needs a copy.
  ASSERT_TRUE(far_->send(FrameBatch{sent}));
  EXPECT_EQ(arenas_[1]->statistics().blocks.lent_blocks, 2u);
  EXPECT_FALSE(visit(*near_).has_value());
  ASSERT_THAT(frames_, SizeIs(2));
  for (const Frame& frame : frames_) expect_frame(frame, *plain);
  EXPECT_TRUE(frames_[0].payloads[0].lent);
  frames_.clear();
  arenas_[1]->drain();
  EXPECT_GE(used_bytes(1), kLarge) << "the sender's frame still has its payload";
  sent.reset();
  EXPECT_EQ(used_bytes(1), 0u);
}

// The far end wants payloads aligned, as it needs them for tensors.
TEST_F(LentPayloadsTest, APartOfABlockIsCopied) {
  auto sent = std::make_shared<Frame>(*frame_with(1, {kLarge}));
  sent->payloads[0] = far_->copy_payload(sent->payloads[0].data, kLarge).value();
  sent->payloads[0].data += 4;
  sent->payloads[0].size -= 4;
  ASSERT_TRUE(far_->send(FrameBatch{sent}));
  EXPECT_FALSE(visit(*near_).has_value());
  ASSERT_THAT(frames_, SizeIs(1));
  expect_frame(frames_[0], *sent);
}

// The second payload finds no block.
TEST_F(LentPayloadsTest, AnInPlaceLendingIsUndoneIfTheFrameIsNotLent) {
  auto sent = std::make_shared<Frame>(*frame_with(1, {kLarge, kArena}));
  sent->payloads[0] = far_->copy_payload(sent->payloads[0].data, kLarge).value();
  ASSERT_TRUE(far_->send(FrameBatch{sent}));
  EXPECT_EQ(arenas_[1]->statistics().blocks.lent_blocks, 0u);
  EXPECT_EQ(arenas_[1]->statistics().blocks.held_blocks, 1u);
  while (frames_.empty()) {
    ASSERT_FALSE(visit(*near_).has_value());
    ASSERT_FALSE(visit(*far_).has_value());
  }
  expect_frame(frames_[0], *frame_with(1, {kLarge, kArena}));
}

// The owner of the tensor may still read and write it.
TEST_F(LentPayloadsTest, APayloadInABlockThatIsNotGivenIsCopied) {
  auto sent = std::make_shared<Frame>(*frame_with(1, {kLarge}));
  sent->payloads[0] = far_->copy_payload(sent->payloads[0].data, kLarge).value();
  sent->payloads[0].given = false;
  ASSERT_TRUE(far_->send(FrameBatch{sent}));
  EXPECT_EQ(arenas_[1]->statistics().blocks.held_blocks, 1u);
  EXPECT_EQ(arenas_[1]->statistics().blocks.lent_blocks, 1u);
}

TEST_F(LentPayloadsTest, ACopyThatThePeerHadCanBeSentByAnyOtherWay) {
  const FramePtr plain = frame_with(1, {kLarge});
  Frame sent = *plain;
  sent.payloads[0] = far_->copy_payload(plain->payloads[0].data, kLarge).value();
  ASSERT_TRUE(far_->send(std::make_shared<Frame>(sent)));
  EXPECT_FALSE(visit(*near_).has_value());
  ASSERT_THAT(frames_, SizeIs(1));
  near_->abort(absl::AbortedError("enough"));
  ASSERT_TRUE(visit(*near_).has_value());
  far_->far_end_gone();
  ASSERT_TRUE(visit(*far_).has_value());
  far_->settle();
  EXPECT_GT(lent_bytes(1), 0u) << "the receiver has it, and it can still be read here";
  expect_frame(sent, *plain);
  // The next connection: a copy while the first one has the block, then the block itself.
  const auto next = std::make_shared<rpc_internal::PayloadLender>(
      arenas_[1], kNear, std::make_shared<PairMemory>(PairMemory::create(kRing).value()),
      PairMemory::kDialler, rpc_internal::WakeSlot{pages_[1], 7});
  LocalListener listener = LocalListener::create().value();
  LocalSocket socket = LocalSocket::connect(listener.name(), std::chrono::steady_clock::now() +
                                                                 std::chrono::seconds(20))
                           .value();
  const rpc_internal::Lendings copied = next->lend(sent, socket);
  ASSERT_THAT(copied, SizeIs(1));
  EXPECT_NE(copied[0].generation, 0u);
  EXPECT_EQ(arenas_[1]->statistics().blocks.lent_blocks, 2u);
  frames_.clear();
  arenas_[1]->drain();
  EXPECT_EQ(arenas_[1]->statistics().blocks.lent_blocks, 1u);
  EXPECT_NE(next->lend(sent, socket)[0].generation, 0u);
  EXPECT_EQ(arenas_[1]->statistics().blocks.held_blocks, 0u);
  expect_frame(sent, *plain);
  sent.payloads.clear();
  next->peer_gone();
  EXPECT_EQ(used_bytes(1), 0u);
}

TEST_F(LentPayloadsTest, CopiesOfFramesThatWaitLeaveRoomForThoseThatAreSent) {
  const FramePtr frame = frame_with(1, {kLarge});
  std::vector<Payload> waiting;
  while (std::optional<Payload> copy = far_->copy_payload(frame->payloads[0].data, kLarge)) {
    waiting.push_back(*std::move(copy));
  }
  EXPECT_GT(used_bytes(1) + kLarge, kArena / 2);
  EXPECT_LE(used_bytes(1), kArena / 2);
  ASSERT_TRUE(far_->send(frame));
  EXPECT_EQ(arenas_[1]->statistics().blocks.lent_blocks, 1u);
}

TEST_F(LentPayloadsTest, NoCopyIsMadeForThePeerIfItWouldNotHelp) {
  const FramePtr large = frame_with(1, {kLarge});
  const std::byte* const data = large->payloads[0].data;
  EXPECT_FALSE(far_->copy_payload(data, 100).has_value()) << "it may fit a record";
  const FramePtr huge = frame_with(2, {kArena + 1});
  EXPECT_FALSE(far_->copy_payload(huge->payloads[0].data, kArena + 1).has_value());
  far_->abort(absl::UnavailableError("over"));
  EXPECT_FALSE(far_->copy_payload(data, kLarge).has_value());
  EXPECT_EQ(used_bytes(1), 0u);
}

TEST_F(LentPayloadsTest, LentAndSmallFramesOfOneThreadKeepTheirOrder) {
  for (uint64_t i = 0; i < 20; ++i) {
    ASSERT_TRUE(far_->send(frame_with(i, {i % 2 == 0 ? kLarge : 50u})));
    EXPECT_FALSE(visit(*near_).has_value());
  }
  ASSERT_THAT(frames_, SizeIs(20));
  for (uint64_t i = 0; i < 20; ++i) EXPECT_EQ(frames_[i].header.sequence, i);
}

TEST_F(LentPayloadsTest, AStreamOfPayloadsUsesTheSameMemoryAgain) {
  for (uint64_t i = 0; i < 500; ++i) {
    ASSERT_TRUE(far_->send(frame_with(i, {kLarge})));
    EXPECT_FALSE(visit(*near_).has_value());
    ASSERT_THAT(frames_, SizeIs(1));
    EXPECT_TRUE(frames_[0].payloads[0].lent);
    frames_.clear();
  }
  EXPECT_EQ(arenas_[1]->statistics().created, 1u);
}

TEST_F(LentPayloadsTest, AtTheCapTheBytesTravelThroughTheRing) {
  std::vector<FramePtr> sent;
  for (uint64_t i = 0; i < 8; ++i) sent.push_back(frame_with(i, {size_t{1} << 20}));
  for (const FramePtr& frame : sent) ASSERT_TRUE(far_->send(frame));
  while (frames_.size() < sent.size()) {
    ASSERT_FALSE(visit(*near_).has_value());
    ASSERT_FALSE(visit(*far_).has_value());
  }
  size_t lent = 0;
  for (const Frame& frame : frames_) {
    expect_frame(frame, *sent[frame.header.sequence]);
    lent += frame.payloads[0].lent ? 1 : 0;
  }
  EXPECT_GE(lent, 2u);
  EXPECT_LE(lent, kArena >> 20);
}

TEST_F(LentPayloadsTest, PayloadsOutliveTheConnectionAndComeBackAfterIt) {
  const FramePtr sent = frame_with(1, {kLarge});
  ASSERT_TRUE(far_->send(sent));
  EXPECT_FALSE(visit(*near_).has_value());
  near_->abort(absl::AbortedError("enough"));
  ASSERT_TRUE(visit(*near_).has_value());
  far_->far_end_gone();
  ASSERT_TRUE(visit(*far_).has_value());
  far_->settle();
  EXPECT_FALSE(far_->lender().all_returned());
  near_.reset();
  ASSERT_THAT(frames_, SizeIs(1));
  expect_frame(frames_[0], *sent);
  std::memset(frames_[0].payloads[0].data, 7, kLarge);  // it is the receiver's to write
  EXPECT_GT(used_bytes(1), 0u);
  frames_.clear();
  arenas_[1]->drain();
  EXPECT_EQ(used_bytes(1), 0u);
  EXPECT_TRUE(far_->lender().all_returned());
}

// The reader stops in the middle of what was written.
TEST_F(LentPayloadsTest, WhatTheFarEndHasNotReadComesBackWhenItHasStoppedToRead) {
  ASSERT_TRUE(far_->send(frame_with(1, {kLarge})));
  EXPECT_FALSE(visit(*near_).has_value());
  for (uint64_t i = 2; i < 60; ++i) ASSERT_TRUE(far_->send(frame_with(i, {20000})));  // many wait
  near_->abort(absl::AbortedError("enough"));
  ASSERT_TRUE(visit(*near_).has_value());
  EXPECT_TRUE(far_->socket().closed_by_peer());
  far_->far_end_gone();
  ASSERT_TRUE(visit(*far_).has_value());
  far_->settle();
  ASSERT_THAT(frames_, SizeIs(1));
  expect_frame(frames_[0], *frame_with(1, {kLarge}));
  EXPECT_EQ(arenas_[1]->statistics().blocks.lent_blocks, 1u);
  frames_.clear();
  arenas_[1]->drain();
  EXPECT_EQ(used_bytes(1), 0u);
}

TEST_F(LentPayloadsTest, ASendAfterTheEndLendsNothing) {
  near_->abort(absl::AbortedError("enough"));
  EXPECT_FALSE(near_->send(frame_with(1, {kLarge})));
  EXPECT_EQ(used_bytes(0), 0u);
}

TEST_F(LentPayloadsTest, TheDeathOfTheProcessTakesAllBack) {
  for (uint64_t i = 0; i < 5; ++i) ASSERT_TRUE(far_->send(frame_with(i, {kLarge})));
  EXPECT_FALSE(visit(*near_).has_value());
  far_->lender().peer_gone();
  EXPECT_EQ(used_bytes(1), 0u);
}

TEST_F(LentPayloadsTest, AnUnusedSegmentIsDroppedAtBothEnds) {
  ASSERT_TRUE(far_->send(frame_with(1, {kLarge})));
  EXPECT_FALSE(visit(*near_).has_value());
  frames_.clear();
  EXPECT_EQ(borrowed_[0]->gauges().segments, 1u);
  arenas_[1]->drain();
  arenas_[1]->retire_idle(kNever);
  EXPECT_EQ(arenas_[1]->statistics().blocks.segments, 0u);
  far_->tell_dropped();
  EXPECT_FALSE(visit(*near_).has_value());
  EXPECT_EQ(borrowed_[0]->gauges().segments, 0u);
  ASSERT_TRUE(far_->send(frame_with(2, {kLarge})));  // from a new segment
  EXPECT_FALSE(visit(*near_).has_value());
  ASSERT_THAT(frames_, SizeIs(1));
  EXPECT_TRUE(frames_[0].payloads[0].lent);
}

// Otherwise a sender whose payloads grow would make the far end map more than the arena has.
TEST_F(LentPayloadsTest, ADroppedSegmentIsToldWhenTheNextOneIsHandedOver) {
  ASSERT_TRUE(far_->send(frame_with(1, {kLarge})));
  EXPECT_FALSE(visit(*near_).has_value());
  frames_.clear();
  arenas_[1]->retire_idle(kNever);
  ASSERT_TRUE(far_->send(frame_with(2, {kLarge})));
  EXPECT_FALSE(visit(*near_).has_value());
  ASSERT_THAT(frames_, SizeIs(1));
  EXPECT_EQ(borrowed_[0]->gauges().segments, 1u);
}

// A peer gives blocks back and dies before the owner has looked.
TEST_F(LentPayloadsTest, ReturnsThatADeadProcessHasLeftBehindHoldNobodyUp) {
  ASSERT_TRUE(far_->send(frame_with(1, {kLarge})));
  EXPECT_FALSE(visit(*near_).has_value());
  frames_.clear();
  far_->lender().peer_gone();
  far_->far_end_gone();
  ASSERT_TRUE(visit(*far_).has_value());
  far_->settle();
  far_->lender().ask_for_returns();
  EXPECT_TRUE(far_->lender().all_returned());
  EXPECT_EQ(used_bytes(1), 0u);
}

TEST_F(LentPayloadsTest, ASegmentOfWhichNothingWasLentIsDroppedInPeace) {
  // The second payload finds no block. So nothing is lent, but the segment was handed over.
  const FramePtr sent = frame_with(1, {kArena * 3 / 4, kArena * 3 / 4});
  ASSERT_TRUE(far_->send(sent));
  EXPECT_EQ(used_bytes(1), 0u);
  arenas_[1]->retire_idle(kNever);
  EXPECT_EQ(arenas_[1]->statistics().blocks.segments, 0u);
  far_->tell_dropped();
  while (frames_.empty()) {
    const auto ended = visit(*near_);
    ASSERT_FALSE(ended.has_value()) << *ended;
    ASSERT_FALSE(visit(*far_).has_value());
  }
  expect_frame(frames_[0], *sent);
  EXPECT_EQ(borrowed_[0]->gauges().segments, 0u);
}

// The kernel reports such an end once, before it gives the messages that are there.
TEST_F(LentPayloadsTest, WhatTheFarEndLentBeforeItWentArrivesAlsoIfItHasNotReadItsSocket) {
  ASSERT_TRUE(near_->send(frame_with(1, {kLarge})));
  const FramePtr sent = frame_with(2, {kLarge});
  ASSERT_TRUE(far_->send(sent));
  far_.reset();
  near_->far_end_gone();
  const auto ended = visit(*near_);
  ASSERT_TRUE(ended.has_value());
  EXPECT_TRUE(absl::IsUnavailable(*ended)) << *ended;
  ASSERT_THAT(frames_, SizeIs(1));
  expect_frame(frames_[0], *sent);
}

// ---- a peer that lies

// Two processes may say that they are the same worker.
TEST_F(LentPayloadsTest, AnotherConnectionOfTheSameWorkerGivesNothingBack) {
  ASSERT_TRUE(far_->send(frame_with(1, {kLarge})));
  EXPECT_FALSE(visit(*near_).has_value());
  const auto memory = std::make_shared<PairMemory>(PairMemory::create(kRing).value());
  const auto other = std::make_shared<rpc_internal::PayloadLender>(
      arenas_[1], kNear, memory, PairMemory::kDialler, rpc_internal::WakeSlot{pages_[1], 7});
  other->begin();
  const uint64_t lent = lent_bytes(1);
  ReturnWriter hostile(memory->returns(PairMemory::kDialler));
  ASSERT_TRUE(hostile.push({1, 1, 0}).ok());
  arenas_[1]->drain();
  EXPECT_EQ(lent_bytes(1), lent);
  EXPECT_TRUE(absl::IsInvalidArgument(other->violation())) << other->violation();
  other->peer_gone();
  EXPECT_EQ(lent_bytes(1), lent);
  frames_.clear();
  arenas_[1]->drain();
  EXPECT_TRUE(far_->lender().violation().ok()) << far_->lender().violation();
  EXPECT_EQ(used_bytes(1), 0u);
}

// The reader has the first frame, and its tensors use the block. The next record is damaged.
TEST_F(LentPayloadsTest, BlocksThatWereReadBeforeAViolationStayLent) {
  const FramePtr sent = frame_with(1, {kLarge});
  ASSERT_TRUE(far_->send(sent));
  const std::span<std::byte> ring = hostile_->ring_data(PairMemory::kDialler);
  const uint64_t end = hostile_->ring(PairMemory::kDialler).tail.load();
  ASSERT_TRUE(far_->send(frame_with(2, {10})));
  ring[end + 8] ^= std::byte{1};  // the serial of the second record
  const auto ended = visit(*near_);
  ASSERT_TRUE(ended.has_value());
  EXPECT_TRUE(absl::IsInvalidArgument(*ended)) << *ended;
  ASSERT_THAT(frames_, SizeIs(1));
  far_->far_end_gone();
  ASSERT_TRUE(visit(*far_).has_value());
  far_->settle();
  EXPECT_EQ(arenas_[1]->statistics().blocks.lent_blocks, 1u);
  expect_frame(frames_[0], *sent);
}

TEST_F(LentPayloadsTest, AReturnOfWhatIsNotLentEndsTheConnection) {
  ASSERT_TRUE(far_->send(frame_with(1, {kLarge})));
  ReturnWriter hostile(hostile_->returns(PairMemory::kDialler));
  ASSERT_TRUE(hostile.push({9, 9, 0}).ok());
  arenas_[1]->drain();
  EXPECT_FALSE(far_->lender().all_returned()) << "a lie counts for no return";
  EXPECT_TRUE(pages_[1]->bits().any_pending());
  const auto ended = visit(*far_);
  ASSERT_TRUE(ended.has_value());
  EXPECT_TRUE(absl::IsInvalidArgument(*ended)) << *ended;
}

TEST_F(LentPayloadsTest, APositionOfReturnsThatLiesEndsTheConnection) {
  ASSERT_TRUE(far_->send(frame_with(1, {kLarge})));
  hostile_->returns(PairMemory::kDialler).tail.store(5000);
  arenas_[1]->drain();
  const auto ended = visit(*far_);
  ASSERT_TRUE(ended.has_value());
  EXPECT_TRUE(absl::IsInvalidArgument(*ended)) << *ended;
}

}  // namespace
}  // namespace weft
