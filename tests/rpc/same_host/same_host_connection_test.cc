// One end of a connection of shared memory: how it ends, and what is left then.
#include "weft/rpc/same_host/same_host_connection.h"

#include <chrono>
#include <memory>
#include <optional>
#include <string>
#include <unistd.h>
#include <utility>
#include <vector>

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "weft/tests/rpc/same_host/frame_ring.h"

namespace weft {
namespace {

using rpc_internal::BufferPool;
using rpc_internal::PairMemory;
using rpc_internal::SameHostConnection;
using rpc_internal::WakePage;
using rpc_internal::WakeSlot;
using testing::frame_with;
using ::testing::HasSubstr;
using ::testing::SizeIs;

// Both ends in one process, without a transport: the test visits them.
class SameHostConnectionTest : public ::testing::Test {
 protected:
  static constexpr size_t kRing = 4096;

  SameHostConnectionTest() {
    const auto soon = std::chrono::steady_clock::now() + std::chrono::seconds(20);
    LocalListener listener = LocalListener::create().value();
    LocalSocket far = LocalSocket::connect(listener.name(), soon).value();
    LocalSocket near = listener.accept(soon).value();
    PairMemory memory = PairMemory::create(kRing).value();
    PairMemory same = PairMemory::adopt(FileDescriptor(::dup(memory.descriptor())), kRing).value();
    hostile_ = PairMemory::adopt(FileDescriptor(::dup(memory.descriptor())), kRing).value();
    near_ = make(std::move(memory), PairMemory::kAcceptor, std::move(near));
    far_ = make(std::move(same), PairMemory::kDialler, std::move(far));
  }

  std::shared_ptr<SameHostConnection> make(PairMemory memory, PairMemory::End end,
                                           LocalSocket socket) {
    const uint32_t here = end == PairMemory::kAcceptor ? 0 : 1;
    return std::make_shared<SameHostConnection>(
        SameHostConnection::Parts{std::move(memory),
                                  end,
                                  std::move(socket),
                                  WakeSlot{pages_[here], 5},
                                  WakeSlot{pages_[1 - here], 6},
                                  {}},
        pool_, TransportLimits{});
  }
  std::optional<absl::Status> visit(SameHostConnection& connection) {
    return connection.visit([this](std::vector<Frame> frames) {
      for (Frame& frame : frames) frames_.push_back(std::move(frame));
    });
  }

  BufferPool pool_;
  const std::shared_ptr<WakePage> pages_[2] = {WakePage::create().value(),
                                               WakePage::create().value()};
  std::optional<PairMemory> hostile_;  // what a peer may write
  std::shared_ptr<SameHostConnection> near_, far_;
  std::vector<Frame> frames_;
};

TEST(PairMemoryTest, TheMemoryOfEachRingSizeCanBeAdopted) {
  for (size_t ring = kLeastRingBytes; ring <= size_t{1} << 20; ring *= 2) {
    PairMemory memory = PairMemory::create(ring).value();
    const auto same = PairMemory::adopt(FileDescriptor(::dup(memory.descriptor())), ring);
    EXPECT_TRUE(same.ok()) << same.status();
    EXPECT_FALSE(PairMemory::adopt(FileDescriptor(::dup(memory.descriptor())), ring * 32).ok());
  }
}

TEST_F(SameHostConnectionTest, WhatTheFarEndWroteBeforeItsDeathArrives) {
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
  const uint32_t seen = bits.arm();
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

// The answer to CLOSE may find no room. Then the closed socket stands for it.
TEST_F(SameHostConnectionTest, AClosedSocketAnswersAClose) {
  near_->close();
  near_->far_end_gone();
  const auto ended = visit(*near_);
  ASSERT_TRUE(ended.has_value());
  EXPECT_TRUE(ended->ok()) << *ended;
}

TEST_F(SameHostConnectionTest, AnAbortIsSeenByTheFarEnd) {
  EXPECT_FALSE(far_->socket().closed_by_peer());
  near_->abort(absl::AbortedError("enough"));
  EXPECT_TRUE(far_->socket().closed_by_peer());
  EXPECT_EQ(visit(*near_), absl::AbortedError("enough"));
  EXPECT_TRUE(pages_[0]->bits().any_pending());
}

TEST_F(SameHostConnectionTest, AViolationOfTheReadersPositionEndsTheConnection) {
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
