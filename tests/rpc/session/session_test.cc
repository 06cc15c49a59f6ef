#include "weft/rpc/session/internal/session.h"

#include <algorithm>
#include <random>

#include <gtest/gtest.h>

#include "weft/base/status.h"
#include "weft/proto/weft.pb.h"
#include "weft/rpc/transport/status_wire.h"

namespace weft::rpc_internal {
namespace {

Frame frame_with(size_t body) {
  Frame frame;
  frame.body.assign(body, 'x');
  return frame;
}

TEST(SessionTest, NumbersAreDenseFromOne) {
  SessionCore session;
  EXPECT_EQ(session.last_sequence(), 0u);
  for (uint64_t i = 1; i <= 5; ++i) EXPECT_EQ(session.number(frame_with(1))->header.sequence, i);
  EXPECT_EQ(session.last_sequence(), 5u);
}

TEST(SessionTest, FramesAreKeptUntilTheAcknowledgementCoversThem) {
  SessionCore session;
  size_t bytes = 0;
  for (size_t i = 1; i <= 5; ++i) bytes += session.number(frame_with(i))->cost();
  EXPECT_EQ(session.retained_bytes(), bytes);
  EXPECT_TRUE(session.on_acknowledged(3));
  ASSERT_EQ(session.unacknowledged().size(), 2u);
  EXPECT_EQ(session.unacknowledged().front()->header.sequence, 4u);
  EXPECT_TRUE(session.on_acknowledged(2));  // an old one changes nothing
  EXPECT_EQ(session.unacknowledged().size(), 2u);
  EXPECT_TRUE(session.on_acknowledged(5));
  EXPECT_TRUE(session.unacknowledged().empty());
  EXPECT_EQ(session.retained_bytes(), 0u);
}

TEST(SessionTest, AnAcknowledgementOfWhatWasNeverSentIsALie) {
  SessionCore session;
  EXPECT_FALSE(session.on_acknowledged(1));
  session.number(frame_with(1));
  EXPECT_FALSE(session.on_acknowledged(2));
  EXPECT_EQ(session.unacknowledged().size(), 1u);
  EXPECT_TRUE(session.on_acknowledged(1));
}

Frame result_with(size_t body) {
  Frame frame = frame_with(body);
  frame.header.kind = FrameKind::kReply;
  frame.header.call = body;
  frame.header.value_bytes = static_cast<uint32_t>(body);
  wire::Meta meta;
  meta.add_references("a reference");
  meta.set_autograd("a record");
  frame.meta = meta.SerializeAsString();
  return frame;
}
bool is_fact(const Frame& frame) { return (frame.header.flags & kFlagError) != 0; }

TEST(SessionTest, OfResultsBeyondTheBoundOnlyTheFactIsKept) {
  SessionCore session(25000);
  for (size_t body : {10001, 10002, 10003}) {
    EXPECT_FALSE(is_fact(*session.number(result_with(body)))) << "what is sent is the result";
  }
  ASSERT_EQ(session.unacknowledged().size(), 3u);
  const Frame& lost = *session.unacknowledged()[0];
  ASSERT_TRUE(is_fact(lost));
  EXPECT_EQ(lost.header.sequence, 1u);
  EXPECT_EQ(lost.header.call, 10001u);
  EXPECT_TRUE(lost.body.empty());
  EXPECT_EQ(lost.header.value_bytes, 0u);
  wire::Meta meta;
  ASSERT_TRUE(meta.ParseFromString(lost.meta));
  const absl::Status status = decode_status(meta.status());
  EXPECT_EQ(status.code(), absl::StatusCode::kDataLoss) << status;
  EXPECT_EQ(ran_of(status), Ran::kYes);
  EXPECT_EQ(meta.references_size(), 1);  // the receiver has to drop them
  EXPECT_TRUE(meta.autograd().empty());
  EXPECT_FALSE(is_fact(*session.unacknowledged()[1]));
  EXPECT_FALSE(is_fact(*session.unacknowledged()[2]));
  EXPECT_LE(session.retained_bytes(), 25000u);
  // Acknowledged results make room.
  EXPECT_TRUE(session.on_acknowledged(2));
  session.number(result_with(10004));
  EXPECT_FALSE(is_fact(*session.unacknowledged()[0]));
  EXPECT_TRUE(session.on_acknowledged(4));
  EXPECT_EQ(session.retained_bytes(), 0u);
}

TEST(SessionTest, CallsPostsAndSmallRepliesAreNeverForgotten) {
  SessionCore session(25000);
  for (int i = 0; i < 10; ++i) {
    session.number(frame_with(10000));
    session.number(result_with(100));
  }
  for (const FramePtr& frame : session.unacknowledged()) EXPECT_FALSE(is_fact(*frame));
}

TEST(SessionTest, WhatIsSentCarriesWhatHasArrived) {
  SessionCore session;
  session.accept(1);
  session.accept(2);
  session.accept(4);
  EXPECT_EQ(session.number(frame_with(1))->header.acknowledged, 2u);
}

TEST(SessionTest, TheWatermarkWaitsForGaps) {
  SessionCore session;
  EXPECT_TRUE(session.accept(2));
  EXPECT_TRUE(session.accept(3));
  EXPECT_EQ(session.acknowledged(), 0u);
  EXPECT_EQ(session.gaps(), 2u);
  EXPECT_TRUE(session.accept(1));
  EXPECT_EQ(session.acknowledged(), 3u);
  EXPECT_EQ(session.gaps(), 0u);
  EXPECT_FALSE(session.accept(0));
}

TEST(SessionTest, InAnyOrderWithDuplicatesEachSequenceIsAcceptedOnce) {
  const uint64_t seed = std::random_device()();
  SCOPED_TRACE(::testing::Message() << "seed " << seed);
  std::mt19937_64 random(seed);
  for (int round = 0; round < 50; ++round) {
    std::vector<uint64_t> arrivals;
    for (uint64_t s = 1; s <= 200; ++s) {
      for (uint64_t copies = 1 + random() % 3; copies > 0; --copies) arrivals.push_back(s);
    }
    std::shuffle(arrivals.begin(), arrivals.end(), random);
    SessionCore session;
    std::vector<bool> seen(201, false);
    for (uint64_t s : arrivals) {
      EXPECT_EQ(session.accept(s), !seen[s]);
      seen[s] = true;
      const auto first_missing = std::find(seen.begin() + 1, seen.end(), false);
      EXPECT_EQ(session.acknowledged() + 1, static_cast<uint64_t>(first_missing - seen.begin()));
    }
    EXPECT_EQ(session.acknowledged(), 200u);
  }
}

// Two sessions over a link that loses everything in flight each time it breaks.
TEST(SessionTest, ResendingTheUnacknowledgedDeliversExactlyOnceOverALossyLink) {
  const uint64_t seed = std::random_device()();
  SCOPED_TRACE(::testing::Message() << "seed " << seed);
  std::mt19937_64 random(seed);
  SessionCore sender, receiver;
  std::vector<FramePtr> wire;
  std::vector<int> delivered(501, 0);
  for (int sent = 0; sent < 500 || !sender.unacknowledged().empty();) {
    if (sent < 500 && random() % 2 == 0) {
      wire.push_back(sender.number(frame_with(1)));
      ++sent;
    }
    if (random() % 10 == 0 || sent == 500) {
      wire.assign(sender.unacknowledged().begin(), sender.unacknowledged().end());
    }
    while (!wire.empty() && random() % 4 != 0) {
      const size_t pick = random() % wire.size();
      const uint64_t sequence = wire[pick]->header.sequence;
      if (receiver.accept(sequence)) ++delivered[sequence];
      wire.erase(wire.begin() + static_cast<std::ptrdiff_t>(pick));
    }
    if (random() % 3 == 0) {
      EXPECT_TRUE(sender.on_acknowledged(receiver.acknowledged()));
    }
  }
  for (int s = 1; s <= 500; ++s) EXPECT_EQ(delivered[s], 1) << s;
}

}  // namespace
}  // namespace weft::rpc_internal
