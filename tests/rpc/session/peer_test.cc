#include "weft/rpc/session/internal/peer.h"

#include <memory>
#include <utility>

#include <gtest/gtest.h>

namespace weft::rpc_internal {
namespace {

using std::chrono::seconds;

constexpr WorkerId kSelf{1, 1};
constexpr WorkerId kPeer{2, 1};
const TimePoint kNow = TimePoint() + std::chrono::hours(1);

class PeerTest : public ::testing::Test {
 protected:
  explicit PeerTest(CreditWindow window = small()) : peer_(kSelf, kPeer, window) {}
  static CreditWindow small() {
    CreditWindow window;
    window.calls = 3;
    window.bytes = 4000;
    window.max_queued_calls = 4;
    window.max_queued_bytes = 6000;
    return window;
  }

  bool call(uint64_t number, size_t body = 0, uint8_t flags = 0, TimePoint deadline = kNever,
            bool waited_for = false) {
    Frame frame;
    frame.header.kind = FrameKind::kCall;
    frame.header.call = number;
    frame.header.flags = flags;
    frame.body.assign(body, 'x');
    PendingCall pending;
    pending.deadline = deadline;
    pending.waited_for = waited_for;
    return peer_.add_call(number, frame, std::move(pending), kNow);
  }
  // The peer reports how much it has taken in total.
  bool credit(uint64_t calls, uint64_t bytes) {
    FrameHeader header;
    header.credit_calls = calls;
    header.credit_bytes = bytes;
    return peer_.on_header(header, kNow);
  }
  std::vector<uint64_t> sent_calls() {
    std::vector<uint64_t> calls;
    for (const FramePtr& frame : peer_.take_outgoing()) calls.push_back(frame->header.call);
    return calls;
  }

  static constexpr size_t kSmall = Frame::kFrameOverhead;  // the cost of an empty call
  PeerCore peer_;
};

using Calls = std::vector<uint64_t>;

TEST_F(PeerTest, CallsBeyondTheWindowWaitForCreditInOrder) {
  for (uint64_t i = 1; i <= 5; ++i) EXPECT_TRUE(call(i));
  EXPECT_EQ(sent_calls(), (Calls{1, 2, 3}));
  EXPECT_EQ(peer_.queued_calls(), 2u);
  EXPECT_TRUE(credit(1, kSmall));
  EXPECT_EQ(sent_calls(), (Calls{4}));
  EXPECT_TRUE(credit(1, kSmall));  // the same credit twice is no more credit
  EXPECT_TRUE(sent_calls().empty());
  EXPECT_TRUE(credit(3, 3 * kSmall));
  EXPECT_EQ(sent_calls(), (Calls{5}));
  EXPECT_EQ(peer_.queued_calls(), 0u);
}

TEST_F(PeerTest, ANewCallDoesNotOvertakeQueuedOnes) {
  EXPECT_TRUE(call(1, 3000));
  EXPECT_TRUE(call(2, 3000));  // queued: too many bytes
  EXPECT_TRUE(call(3));        // would fit, but must not pass 2
  EXPECT_EQ(sent_calls(), (Calls{1}));
  EXPECT_TRUE(credit(1, 3000 + kSmall));
  EXPECT_EQ(sent_calls(), (Calls{2, 3}));
}

TEST_F(PeerTest, NestedCallsTakeNoCallCreditAndOvertakeTheQueue) {
  for (uint64_t i = 1; i <= 4; ++i) EXPECT_TRUE(call(i));
  EXPECT_TRUE(call(10, 0, kFlagNested));
  EXPECT_EQ(sent_calls(), (Calls{1, 2, 3, 10}));
  // If the far end takes a nested call, it returns bytes but no call, so 4 still waits.
  EXPECT_TRUE(credit(0, kSmall));
  EXPECT_TRUE(sent_calls().empty());
  EXPECT_TRUE(credit(1, 2 * kSmall));
  EXPECT_EQ(sent_calls(), (Calls{4}));
}

// The calls that hold the window may wait for nested calls.
TEST_F(PeerTest, NestedCallsHaveAWindowOfBytesOfTheirOwn) {
  EXPECT_TRUE(call(1, 9000));
  EXPECT_TRUE(call(2, 2000 - kSmall, kFlagNested));
  EXPECT_TRUE(call(3));  // waits
  EXPECT_TRUE(call(4, 2001 - kSmall, kFlagNested));
  EXPECT_TRUE(call(5, 2000 - kSmall, kFlagNested));  // would fit, but must not pass 4
  EXPECT_EQ(sent_calls(), (Calls{1, 2}));
  (void)peer_.take_call(2);  // answered
  EXPECT_TRUE(credit(0, 2000));
  EXPECT_EQ(sent_calls(), (Calls{4}));
  (void)peer_.take_call(4);
  EXPECT_TRUE(credit(0, 4001));
  EXPECT_EQ(sent_calls(), (Calls{5})) << "though 3 has waited for longer";
  FrameHeader all;
  all.acknowledged = 4;
  all.credit_calls = 1;
  all.credit_bytes = 9000 + kSmall + 4001;
  EXPECT_TRUE(peer_.on_header(all, kNow));
  EXPECT_EQ(sent_calls(), (Calls{3}));
}

TEST_F(PeerTest, ACallLargerThanTheWindowGoesAlone) {
  EXPECT_TRUE(call(1));
  EXPECT_TRUE(call(2, 5000));  // larger than the whole window: waits until it is empty
  EXPECT_EQ(sent_calls(), (Calls{1}));
  EXPECT_TRUE(credit(1, kSmall));
  EXPECT_EQ(sent_calls(), (Calls{2}));
  EXPECT_TRUE(call(3));
  EXPECT_TRUE(sent_calls().empty());
  EXPECT_TRUE(credit(2, 2 * kSmall + 5000));
  EXPECT_EQ(sent_calls(), (Calls{3}));
}

TEST_F(PeerTest, ALargeCallGoesAtOnceWhenNothingElseIsOutstanding) {
  EXPECT_TRUE(call(1, 100000));
  EXPECT_EQ(sent_calls(), (Calls{1}));
}

TEST_F(PeerTest, CallsWaitWhereTooMuchIsUnacknowledgedThoughItWasTaken) {
  for (uint64_t i = 1; i <= 4; ++i) {  // the first never arrives, the others are taken at once
    EXPECT_TRUE(call(i, 1900 - kSmall));
    EXPECT_TRUE(credit(i - 1, 1900 * (i - 1)));
  }
  EXPECT_EQ(sent_calls(), (Calls{1, 2, 3, 4}));
  EXPECT_TRUE(call(5, 1900 - kSmall));
  EXPECT_TRUE(sent_calls().empty()) << "beyond twice the window";
  FrameHeader header;
  header.acknowledged = 4;
  header.credit_calls = 3;
  header.credit_bytes = 3 * 1900;
  EXPECT_TRUE(peer_.on_header(header, kNow));
  EXPECT_EQ(sent_calls(), (Calls{5}));
}

TEST_F(PeerTest, TheQueueIsBoundedInCalls) {
  for (uint64_t i = 1; i <= 7; ++i) EXPECT_TRUE(call(i)) << i;
  EXPECT_FALSE(call(8));
  EXPECT_EQ(peer_.pending_calls(), 7u);  // nothing of it was taken
  EXPECT_TRUE(credit(1, kSmall));
  EXPECT_TRUE(call(8));
}

TEST_F(PeerTest, TheQueueIsBoundedInBytes) {
  for (uint64_t i = 1; i <= 3; ++i) EXPECT_TRUE(call(i));
  EXPECT_TRUE(call(4, 5000));
  EXPECT_FALSE(call(5, 1000));
  EXPECT_TRUE(call(6, 500));
}

TEST_F(PeerTest, ACallThatAThreadWaitsForQueuesBeyondTheBounds) {
  for (uint64_t i = 1; i <= 7; ++i) EXPECT_TRUE(call(i)) << i;
  EXPECT_FALSE(call(8));
  EXPECT_TRUE(call(9, 10000, 0, kNever, true));
  EXPECT_EQ(peer_.queued_calls(), 5u);
  EXPECT_EQ(sent_calls(), (Calls{1, 2, 3}));
  EXPECT_TRUE(credit(3, 3 * kSmall));
  EXPECT_EQ(sent_calls(), (Calls{4, 5, 6}));  // in its turn
}

TEST_F(PeerTest, ACallGivenUpInTheQueueIsNeverSent) {
  for (uint64_t i = 1; i <= 5; ++i) EXPECT_TRUE(call(i));
  ASSERT_TRUE(peer_.take_call(4).has_value());
  EXPECT_FALSE(peer_.take_call(4).has_value());
  EXPECT_EQ(sent_calls(), (Calls{1, 2, 3}));
  EXPECT_TRUE(credit(3, 3 * kSmall));
  EXPECT_EQ(sent_calls(), (Calls{5}));
  EXPECT_EQ(peer_.queued_calls(), 0u);
}

// Its frame may hold memory that other calls could use.
TEST_F(PeerTest, ACallGivenUpInTheQueueLeavesItAtOnce) {
  for (uint64_t i = 1; i <= 3; ++i) EXPECT_TRUE(call(i));
  Frame frame;
  frame.header.kind = FrameKind::kCall;
  const auto tensor = std::make_shared<int>();
  frame.payloads.push_back({nullptr, 3000, tensor});
  PendingCall pending;
  pending.deadline = kNow + seconds(1);
  ASSERT_TRUE(peer_.add_call(4, frame, std::move(pending), kNow));
  EXPECT_TRUE(call(5, 2000));
  EXPECT_FALSE(call(6, 2000)) << "the queue has no room";
  EXPECT_EQ(peer_.take_late(kNow + seconds(1)).size(), 1u);
  EXPECT_EQ(tensor.use_count(), 1);
  EXPECT_EQ(peer_.queued_calls(), 1u);
  EXPECT_TRUE(call(6, 2000));
  for (uint64_t i = 100; i < 10000; ++i) {  // the queue does not grow with calls given up
    EXPECT_TRUE(call(i));
    EXPECT_TRUE(peer_.take_call(i).has_value());
  }
  EXPECT_EQ(peer_.queued_calls(), 2u);
  EXPECT_EQ(sent_calls(), (Calls{1, 2, 3}));
  EXPECT_TRUE(credit(3, 3 * kSmall));
  EXPECT_EQ(sent_calls(), (Calls{5}));
}

TEST_F(PeerTest, ATakenCallSaysWhetherItWasSent) {
  for (uint64_t i = 1; i <= 4; ++i) EXPECT_TRUE(call(i));
  EXPECT_TRUE(peer_.take_call(3)->sent);
  EXPECT_FALSE(peer_.take_call(4)->sent);
}

TEST_F(PeerTest, LateCallsComeInTheOrderOfTheirDeadlines) {
  EXPECT_TRUE(call(1, 0, 0, kNow + seconds(3)));
  EXPECT_TRUE(call(2, 0, 0, kNow + seconds(1)));
  EXPECT_TRUE(call(3));
  EXPECT_EQ(peer_.earliest_deadline(), kNow + seconds(1));
  EXPECT_TRUE(peer_.take_late(kNow).empty());
  const auto late = peer_.take_late(kNow + seconds(3));
  ASSERT_EQ(late.size(), 2u);
  EXPECT_EQ(late[0].first, 2u);
  EXPECT_EQ(late[1].first, 1u);
  EXPECT_EQ(peer_.earliest_deadline(), kNever);
  EXPECT_EQ(peer_.pending_calls(), 1u);
}

TEST_F(PeerTest, AnAnsweredCallIsNotLate) {
  EXPECT_TRUE(call(1, 0, 0, kNow + seconds(1)));
  peer_.take_call(1);
  EXPECT_EQ(peer_.earliest_deadline(), kNever);
  EXPECT_TRUE(peer_.take_late(kNow + seconds(9)).empty());
}

TEST_F(PeerTest, TheBudgetIsWhatIsLeftWhenTheCallIsSent) {
  EXPECT_TRUE(call(1));
  EXPECT_TRUE(call(2, 3900, 0, kNow + seconds(10)));  // queued
  EXPECT_TRUE(call(3, 0, 0, kNow + seconds(1)));
  EXPECT_EQ(peer_.take_outgoing().at(0)->header.budget_us, 0u);
  FrameHeader header;
  header.credit_calls = 1;
  header.credit_bytes = kSmall;
  EXPECT_TRUE(peer_.on_header(header, kNow + seconds(4)));
  const auto sent = peer_.take_outgoing();
  ASSERT_EQ(sent.size(), 1u);
  EXPECT_EQ(sent[0]->header.budget_us, 6000000u);
}

TEST_F(PeerTest, AllCallsCanBeTakenAtTheEndInOrder) {
  for (uint64_t i : {5, 2, 9, 1, 4}) EXPECT_TRUE(call(i, 0, 0, kNow + seconds(1)));
  const auto all = peer_.take_all_calls();
  Calls numbers;
  for (const auto& [number, pending] : all) numbers.push_back(number);
  EXPECT_EQ(numbers, (Calls{1, 2, 4, 5, 9}));
  EXPECT_EQ(peer_.queued_calls(), 0u);
  EXPECT_EQ(peer_.earliest_deadline(), kNever);
}

TEST_F(PeerTest, AllFramesCanBeDroppedAtTheEndAndFreeTheirMemory) {
  for (uint64_t i = 1; i <= 4; ++i) EXPECT_TRUE(call(i));  // the fourth waits for credit
  EXPECT_TRUE(call(5, 0, kFlagNested));
  (void)peer_.take_outgoing();
  const auto tensor = std::make_shared<int>();
  Frame reply;
  reply.header.kind = FrameKind::kReply;
  reply.payloads.push_back({nullptr, 10000, tensor});
  peer_.post(std::move(reply));  // sent, and retained
  Frame heartbeat;
  heartbeat.header.kind = FrameKind::kHeartbeat;
  peer_.send_unnumbered(std::move(heartbeat));

  EXPECT_GT(tensor.use_count(), 1);
  EXPECT_EQ(peer_.take_all_frames().size(), 7u) << "5 retained, 2 to be sent";
  EXPECT_EQ(tensor.use_count(), 1);
  EXPECT_EQ(peer_.session().retained_bytes(), 0u);
  EXPECT_EQ(peer_.session().retained_call_bytes(), 0u);
  EXPECT_EQ(peer_.resend().size(), 1u) << "only the acknowledgement";
  FrameHeader late;  // a frame that was under way
  late.acknowledged = 5;
  EXPECT_TRUE(peer_.on_header(late, kNow));
}

TEST_F(PeerTest, CreditForWhatWasNeverChargedIsALie) {
  EXPECT_TRUE(call(1));
  EXPECT_FALSE(credit(2, 0));
  EXPECT_FALSE(credit(0, kSmall + 1));
  FrameHeader header;
  header.acknowledged = 2;
  EXPECT_FALSE(peer_.on_header(header, kNow));
  EXPECT_TRUE(credit(1, kSmall));
}

TEST_F(PeerTest, EveryFrameSaysWhoSpeaksToWhomAndWhatArrived) {
  Frame arrived;
  arrived.header.kind = FrameKind::kReply;
  arrived.header.sequence = 1;
  EXPECT_TRUE(peer_.accept(arrived));
  FrameHeader taken;
  taken.kind = FrameKind::kCall;
  peer_.call_taken(taken, 77);
  taken.flags = kFlagNested;
  peer_.call_taken(taken, 3);
  EXPECT_TRUE(call(1));
  const FrameHeader header = peer_.take_outgoing().at(0)->header;
  EXPECT_EQ(header.source, kSelf);
  EXPECT_EQ(header.destination, kPeer);
  EXPECT_EQ(header.acknowledged, 1u);
  EXPECT_EQ(header.credit_calls, 1u);  // the nested one does not count
  EXPECT_EQ(header.credit_bytes, 80u);
}

TEST_F(PeerTest, AResendHoldsAllThatMayBeLostAndCancelsAfterTheirCalls) {
  EXPECT_TRUE(call(1));
  EXPECT_EQ(sent_calls(), (Calls{1}));  // on the connection that will be lost
  EXPECT_TRUE(call(2));
  peer_.cancel(2);
  const FrameBatch frames = peer_.resend();
  ASSERT_EQ(frames.size(), 4u);
  EXPECT_EQ(frames[0]->header.kind, FrameKind::kAck);  // with the present credit
  EXPECT_EQ(frames[1]->header.sequence, 1u);
  EXPECT_EQ(frames[2]->header.sequence, 2u);
  EXPECT_EQ(frames[3]->header.kind, FrameKind::kCancel);
  EXPECT_TRUE(peer_.take_outgoing().empty());
  FrameHeader header;
  header.acknowledged = 1;
  EXPECT_TRUE(peer_.on_header(header, kNow));
  const FrameBatch again = peer_.resend();
  ASSERT_EQ(again.size(), 3u) << "a cancel may be lost like its call";
  EXPECT_EQ(again[1]->header.sequence, 2u);
  EXPECT_EQ(again[2]->header.kind, FrameKind::kCancel);
}

TEST_F(PeerTest, DuplicatesAreRefusedAndCountOnceForQuiescence) {
  Frame frame;
  frame.header.kind = FrameKind::kCall;
  frame.header.sequence = 1;
  EXPECT_TRUE(peer_.accept(frame));
  EXPECT_FALSE(peer_.accept(frame));
  EXPECT_EQ(peer_.counted_received(), 1u);
  Frame post;
  post.header.kind = FrameKind::kPost;
  post.header.sequence = 2;
  post.header.function = static_cast<uint64_t>(Topic::kMembership);
  EXPECT_TRUE(peer_.accept(post));
  EXPECT_EQ(peer_.counted_received(), 1u);  // membership posts are not work
  post.header.sequence = 0;
  peer_.post(post);
  post.header.function = static_cast<uint64_t>(Topic::kRRef);
  peer_.post(post);
  EXPECT_EQ(peer_.counted_sent(), 1u);
}

TEST_F(PeerTest, AnAckIsDueAfterManyFramesOrMuchCreditAndNotBefore) {
  EXPECT_FALSE(peer_.ack_due());
  EXPECT_FALSE(peer_.ack_owed());
  Frame frame;
  frame.header.kind = FrameKind::kReply;
  for (uint64_t i = 1; i < 256; ++i) {
    frame.header.sequence = i;
    peer_.accept(frame);
    EXPECT_TRUE(peer_.ack_owed());
    EXPECT_FALSE(peer_.ack_due()) << i;
  }
  frame.header.sequence = 256;
  peer_.accept(frame);
  EXPECT_TRUE(peer_.ack_due());
  peer_.send_ack();
  EXPECT_FALSE(peer_.ack_owed());
  const auto sent = peer_.take_outgoing();
  ASSERT_EQ(sent.size(), 1u);
  EXPECT_EQ(sent[0]->header.acknowledged, 256u);
  EXPECT_EQ(sent[0]->header.sequence, 0u);
  // A quarter of a window of three calls is one call.
  FrameHeader taken;
  taken.kind = FrameKind::kCall;
  peer_.call_taken(taken, 10);
  EXPECT_TRUE(peer_.ack_due());
  peer_.send_ack();
  taken.flags = kFlagNested;
  peer_.call_taken(taken, 999);
  EXPECT_TRUE(peer_.ack_owed());
  EXPECT_FALSE(peer_.ack_due());
  peer_.call_taken(taken, 1);
  EXPECT_TRUE(peer_.ack_due());
}

TEST_F(PeerTest, ALargeFrameMakesAnAckDueAtOnce) {
  Frame frame;
  frame.header.sequence = 1;
  frame.body.assign(size_t{1} << 20, 'x');
  peer_.accept(frame);
  EXPECT_TRUE(peer_.ack_due());
}

// A numbered frame from the peer about a call.
Frame about(FrameKind kind, uint64_t sequence, uint64_t call) {
  Frame frame;
  frame.header.kind = kind;
  frame.header.sequence = sequence;
  frame.header.call = call;
  return frame;
}

TEST_F(PeerTest, ACancelThatOvertakesItsCallCancelsIt) {
  const Frame cancel = about(FrameKind::kCancel, 2, 7);
  EXPECT_TRUE(peer_.accept(cancel));
  peer_.note_cancel(cancel.header);
  EXPECT_TRUE(peer_.accept(about(FrameKind::kCall, 1, 7)));
  EXPECT_TRUE(peer_.admitted(7));
  EXPECT_FALSE(peer_.admitted(7));
}

TEST_F(PeerTest, ACancelBetweenTheArrivalOfItsCallAndItsAdmissionCancelsIt) {
  EXPECT_TRUE(peer_.accept(about(FrameKind::kCall, 1, 7)));
  const Frame cancel = about(FrameKind::kCancel, 2, 7);
  EXPECT_TRUE(peer_.accept(cancel));
  peer_.note_cancel(cancel.header);
  EXPECT_TRUE(peer_.admitted(7));
}

// Cancels often cross the reply. If each were kept, they would push out a cancel that came early.
TEST_F(PeerTest, CancelsOfCallsThatHaveEndedAreNotKept) {
  const Frame early = about(FrameKind::kCancel, 2, 7);  // its call, number 1, is in flight
  EXPECT_TRUE(peer_.accept(early));
  peer_.note_cancel(early.header);
  EXPECT_TRUE(peer_.accept(about(FrameKind::kCall, 1, 7)));
  EXPECT_TRUE(peer_.admitted(7));
  for (uint64_t sequence = 3; sequence < 3 + 2 * 1024; ++sequence) {
    const Frame late = about(FrameKind::kCancel, sequence, 1'000 + sequence);
    EXPECT_TRUE(peer_.accept(late));
    peer_.note_cancel(late.header);
  }
  EXPECT_EQ(peer_.early_cancels(), 0u);
}

TEST_F(PeerTest, ACancelOfWhatNeverWasACallIsForgottenOnceNothingBeforeItIsMissing) {
  const Frame cancel = about(FrameKind::kCancel, 2, 7);
  EXPECT_TRUE(peer_.accept(cancel));
  peer_.note_cancel(cancel.header);
  EXPECT_EQ(peer_.early_cancels(), 1u);
  EXPECT_TRUE(peer_.accept(about(FrameKind::kPost, 1, 0)));
  EXPECT_EQ(peer_.early_cancels(), 0u);
}

TEST_F(PeerTest, AtMost1024EarlyCancelsAreKept) {
  for (uint64_t sequence = 2; sequence <= 1026; ++sequence) {
    peer_.note_cancel(about(FrameKind::kCancel, sequence, sequence).header);
  }
  EXPECT_EQ(peer_.early_cancels(), 1024u);
}

}  // namespace
}  // namespace weft::rpc_internal
