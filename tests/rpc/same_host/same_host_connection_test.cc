// One end of a connection of shared memory: how it ends, and what is left then.
#include "weft/rpc/same_host/connection/same_host_connection.h"

#include <chrono>
#include <memory>
#include <optional>
#include <string>
#include <unistd.h>
#include <utility>
#include <vector>

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "weft/tests/rpc/same_host/connected_ends.h"
#include "weft/tests/rpc/same_host/frame_ring.h"

namespace weft {
namespace {

using rpc_internal::PairMemory;
using testing::frame_with;
using ::testing::HasSubstr;
using ::testing::SizeIs;

using SameHostConnectionTest = testing::ConnectedEnds;

TEST(PairMemoryTest, TheMemoryOfEachRingSizeCanBeAdopted) {
  for (size_t ring = kLeastRingBytes; ring <= size_t{1} << 20; ring *= 2) {
    PairMemory memory = PairMemory::create(ring).value();
    const auto same = PairMemory::adopt(FileDescriptor(::dup(memory.descriptor())), ring);
    EXPECT_TRUE(same.ok()) << same.status();
    EXPECT_FALSE(PairMemory::adopt(FileDescriptor(::dup(memory.descriptor())), ring * 32).ok());
  }
}

TEST_F(SameHostConnectionTest, WhatTheFarEndWroteBeforeItsDeathArrives) {
  const auto all_memory = arenas_[1]->allocate(kArena);
  EXPECT_TRUE(far_->send(frame_with(1, {100})));
  EXPECT_TRUE(far_->send(frame_with(2, {50000})));  // half of it fits
  near_->far_end_gone();
  const auto ended = visit(*near_);
  ASSERT_TRUE(ended.has_value());
  EXPECT_TRUE(absl::IsUnavailable(*ended)) << *ended;
  EXPECT_THAT(std::string(ended->message()), HasSubstr(std::to_string(::getpid())));
  ASSERT_THAT(frames_, SizeIs(1));
  EXPECT_EQ(frames_[0].header.sequence, 1u);
  EXPECT_FALSE(near_->send(frame_with(3, {})));
}

// The far end died between its exchange of `armed` and the wake-up: signals alone wake nobody.
TEST_F(SameHostConnectionTest, ADeathWakesAReaderThatTheDeadPeerHasDisarmed) {
  WakeBits& bits = pages_[0]->bits();
  const uint32_t seen = bits.arm(WakeBits::Group::kServing);
  ASSERT_EQ(bits.armed.exchange(0), 1u);
  near_->far_end_gone();
  EXPECT_NE(bits.word.load(), seen);
  size_t slots = 0;
  bits.take_pending([&](size_t slot) {
    EXPECT_EQ(slot, 5u);
    ++slots;
  });
  EXPECT_EQ(slots, 1u);
}

TEST_F(SameHostConnectionTest, CloseEndsBothEndsInOrder) {
  EXPECT_TRUE(near_->send(frame_with(1, {10000})));
  near_->close();
  std::optional<absl::Status> far;
  for (int i = 0; i < 100 && !far.has_value(); ++i) {
    far = visit(*far_);
    if (!far.has_value()) {
      EXPECT_FALSE(visit(*near_).has_value());
    }
  }
  ASSERT_TRUE(far.has_value());
  EXPECT_TRUE(far->ok()) << *far;
  EXPECT_THAT(frames_, SizeIs(1));
  const auto near = visit(*near_);
  ASSERT_TRUE(near.has_value());
  EXPECT_TRUE(near->ok()) << *near;
}

// A caller only reads. What it finds is left for act_on().
TEST_F(SameHostConnectionTest, ReadDoesNothingButRead) {
  std::vector<Frame> frames;
  EXPECT_TRUE(far_->send(frame_with(1, {100})));
  EXPECT_FALSE(near_->must_act_on(near_->read(frames)));
  EXPECT_THAT(frames, SizeIs(1));
  EXPECT_TRUE(far_->send(frame_with(2, {100})));
  far_->close();
  const auto found = near_->read(frames);
  EXPECT_THAT(frames, SizeIs(2));
  EXPECT_TRUE(near_->must_act_on(found));
  EXPECT_FALSE(far_->socket().closed_by_peer());
  EXPECT_TRUE(near_->send(frame_with(3, {})));
  EXPECT_EQ(near_->act_on(found), absl::OkStatus());
  EXPECT_TRUE(far_->socket().closed_by_peer());
}

TEST_F(SameHostConnectionTest, ReadLeavesADeathAndAnAbortForLater) {
  std::vector<Frame> frames;
  near_->far_end_gone();
  const auto gone = near_->read(frames);
  EXPECT_TRUE(near_->must_act_on(gone));
  far_->abort(absl::AbortedError("enough"));
  const auto aborted = far_->read(frames);
  EXPECT_TRUE(far_->must_act_on(aborted));
  EXPECT_EQ(far_->act_on(aborted), absl::AbortedError("enough"));
  EXPECT_TRUE(absl::IsUnavailable(near_->act_on(gone).value()));
}

TEST_F(SameHostConnectionTest, WhatWaitsForRoomIsLeftForLater) {
  const auto all_memory = arenas_[0]->allocate(kArena);
  EXPECT_TRUE(near_->send(frame_with(1, {50000})));  // half of it fits
  std::vector<Frame> frames;
  const auto found = near_->read(frames);
  EXPECT_TRUE(near_->must_act_on(found));
  while (frames.empty()) {
    (void)far_->read(frames);
    EXPECT_FALSE(near_->act_on(found).has_value());
  }
  EXPECT_FALSE(near_->must_act_on(found));
}

// The answer to CLOSE may find no room. Then the closed socket stands for it.
TEST_F(SameHostConnectionTest, AClosedSocketAnswersAClose) {
  near_->close();
  near_->far_end_gone();
  const auto ended = visit(*near_);
  ASSERT_TRUE(ended.has_value());
  EXPECT_TRUE(ended->ok()) << *ended;
}

// Not before visit(): the far end takes it for the end of reading.
TEST_F(SameHostConnectionTest, AnAbortIsSeenByTheFarEndOnceThisEndReadsNoMore) {
  near_->abort(absl::AbortedError("enough"));
  EXPECT_FALSE(far_->socket().closed_by_peer());
  EXPECT_EQ(visit(*near_), absl::AbortedError("enough"));
  EXPECT_TRUE(far_->socket().closed_by_peer());
  EXPECT_TRUE(pages_[0]->bits().any_pending());
}

TEST_F(SameHostConnectionTest, AViolationOfTheReadersPositionEndsTheConnection) {
  const auto all_memory = arenas_[0]->allocate(kArena);
  EXPECT_TRUE(near_->send(frame_with(1, {50000})));
  hostile_->ring(PairMemory::kAcceptor).head.store(8);
  const auto ended = visit(*near_);
  ASSERT_TRUE(ended.has_value());
  EXPECT_TRUE(absl::IsInvalidArgument(*ended)) << *ended;
  EXPECT_TRUE(far_->socket().closed_by_peer());
}

TEST_F(SameHostConnectionTest, FramesBeforeAViolationArrive) {
  EXPECT_TRUE(far_->send(frame_with(1, {10})));
  EXPECT_TRUE(far_->send(frame_with(2, {10})));
  hostile_->ring(PairMemory::kDialler).tail.fetch_add(16);
  const auto ended = visit(*near_);
  ASSERT_TRUE(ended.has_value());
  EXPECT_TRUE(absl::IsInvalidArgument(*ended)) << *ended;
  EXPECT_THAT(frames_, SizeIs(2));
}

TEST_F(SameHostConnectionTest, TheEndReleasesFramesThatWaitForRoom) {
  const auto owner = std::make_shared<int>();
  for (uint64_t i = 0; i < 20; ++i) {
    EXPECT_TRUE(near_->send(frame_with(i, {i % 2 == 0 ? 20000u : 500u}, owner)));
  }
  near_->abort(absl::AbortedError("enough"));
  ASSERT_TRUE(visit(*near_).has_value());
  EXPECT_EQ(owner.use_count(), 1);  // and the test still holds the connection
}

}  // namespace
}  // namespace weft
