// Cases that the conformance tests do not reach: answers of the far end, resources, and hostile
// peers after the handshake.
#include "weft/rpc/same_host/same_host_transport.h"

#include <atomic>
#include <sys/resource.h>
#include <thread>

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "weft/tests/rpc/same_host/frame_ring.h"
#include "weft/tests/rpc/same_host/process_state.h"
#include "weft/tests/rpc/same_host/raw_peer.h"
#include "weft/tests/support/eventually.h"
#include "weft/tests/support/held_timers.h"

namespace weft {
namespace {

using rpc_internal::Introduction;
using testing::connect_ends;
using testing::dial_from;
using testing::End;
using testing::eventually;
using testing::frame_with;
using ::testing::HasSubstr;
using testing::HeldTimers;
using testing::open_descriptors;
using testing::RawPeer;
using testing::same_host_end;
using testing::shared_bytes;
using testing::shared_mappings;
using testing::soon;
using testing::started_end;

TEST(SameHostTransportTest, ARefusalIsTheFarEndsAnswerWhateverItsCode) {
  SystemClock clock;
  auto a = started_end(clock, 1), b = started_end(clock, 2);
  for (const absl::Status& refusal :
       {absl::PermissionDeniedError("not you"), absl::DeadlineExceededError("too late"),
        absl::AbortedError("not yet"), absl::UnavailableError("it leaves")}) {
    b->sink.set_refusal(refusal);
    const absl::Status status = connect_ends(*a, *b).status();
    EXPECT_EQ(status.code(), refusal.code()) << status;
    EXPECT_EQ(status.message(), refusal.message());
    EXPECT_TRUE(answered_by_peer(status)) << status;
  }
}

TEST(SameHostTransportTest, AnotherWorkerIsTheFarEndsAnswer) {
  SystemClock clock;
  auto a = started_end(clock, 1), b = started_end(clock, 2);
  const absl::Status status =
      dial_from(*a, b->transport->address(), {"group", "w2", {2, 9}}, soon()).result().status();
  EXPECT_TRUE(absl::IsFailedPrecondition(status)) << status;
  EXPECT_TRUE(answered_by_peer(status));
  EXPECT_TRUE(b->sink.accepted().empty());
}

TEST(SameHostTransportTest, NobodyThereAndAnotherHostAreNoAnswers) {
  SystemClock clock;
  auto a = started_end(clock, 1);
  const absl::Status nobody =
      dial_from(*a, rpc_internal::local_address("weft-nobody"), {}, soon()).result().status();
  EXPECT_TRUE(absl::IsUnavailable(nobody)) << nobody;
  EXPECT_FALSE(answered_by_peer(nobody));
  const absl::Status elsewhere = dial_from(*a, "another-host,weft-1", {}, soon()).result().status();
  EXPECT_TRUE(absl::IsFailedPrecondition(elsewhere)) << elsewhere;
  EXPECT_FALSE(answered_by_peer(elsewhere));
}

TEST(SameHostTransportTest, ADialWaitsForTheStartUntilItsDeadlineOnly) {
  HeldTimers clock;
  auto a = started_end(clock, 1), b = same_host_end(clock, 2);
  const size_t before = open_descriptors();
  auto late =
      dial_from(*a, b->transport->address(), b->identity, clock.now() + std::chrono::seconds(1000));
  ASSERT_TRUE(eventually([&] { return open_descriptors() >= before + 6; }));  // HELLO is there
  clock.fire(std::chrono::seconds(2000));
  const absl::Status status = late.result().status();
  EXPECT_TRUE(absl::IsDeadlineExceeded(status)) << status;
  EXPECT_FALSE(answered_by_peer(status));
  EXPECT_TRUE(eventually([&] { return open_descriptors() == before; }));
  auto waits = dial_from(*a, b->transport->address(), b->identity, soon());
  EXPECT_TRUE(b->transport->start(b->identity, &b->sink).ok());
  EXPECT_TRUE(waits.result().ok());
  EXPECT_EQ(b->sink.accepted().size(), 1u);
}

TEST(SameHostTransportTest, NothingIsLeftOfAConnectionThatHasEnded) {
  SystemClock clock;
  auto a = started_end(clock, 1), b = started_end(clock, 2);
  size_t descriptors = open_descriptors(), mappings = shared_mappings();
  for (size_t round = 0; round <= 6; ++round) {
    {
      const auto near = connect_ends(*a, *b);
      ASSERT_TRUE(near.ok()) << near.status();
      ASSERT_NE(b->sink.wait_for_connection(), nullptr);
      EXPECT_GT(open_descriptors(), descriptors);
      EXPECT_GT(shared_mappings(), mappings);
      (*near)->send(frame_with(1, {size_t{1} << 20}));
      if (round == 0) {
        ASSERT_TRUE(b->sink.wait_for_frames(1));
      }
      if (round % 2 == 0) {
        (*near)->close();
      } else {
        (*near)->abort(absl::AbortedError("enough"));
      }
      ASSERT_TRUE(a->sink.wait_for_closed(1) && b->sink.wait_for_closed(1));
    }
    if (round == 0) {  // it leaves the segment of the arena, at its owner
      descriptors += 1;
      mappings += 1;
    }
    const auto nothing_left = [&] {
      a->sink.forget_connections();
      b->sink.forget_connections();
      b->sink.take_frames();
      return open_descriptors() == descriptors && shared_mappings() == mappings;
    };
    ASSERT_TRUE(eventually(nothing_left)) << round;
  }
}

TEST(SameHostTransportTest, FurtherConnectionsHaveSmallerRings) {
  SystemClock clock;
  auto a = started_end(clock, 1, {.ring_bytes = 65536, .full_rings = 2});
  auto b = started_end(clock, 2);
  std::vector<size_t> grown;
  std::vector<ConnectionPtr> connections;
  for (size_t i = 0; i < 4; ++i) {
    const size_t before = shared_bytes();
    connections.push_back(*connect_ends(*a, *b));
    ASSERT_TRUE(eventually([&] { return b->sink.accepted().size() == i + 1; }));
    grown.push_back(shared_bytes() - before);
  }
  // A connection has two rings, and both ends of it are in this process.
  EXPECT_EQ(grown[0], grown[1]);
  EXPECT_EQ(grown[1] - grown[2], 4 * (65536 - 16384));
  EXPECT_EQ(grown[2], grown[3]);
  // Payloads that are too small to be lent, and together larger than the ring, go in pieces.
  connections.back()->send(frame_with(1, std::vector<size_t>(4, 12000)));
  EXPECT_TRUE(b->sink.wait_for_frames(1));
}

TEST(SameHostTransportTest, StopLeavesNothingThoughTheTransportLives) {
  SystemClock clock;
  const size_t descriptors = open_descriptors();
  auto a = started_end(clock, 1), b = started_end(clock, 2);
  const auto owner = std::make_shared<int>();
  {
    const auto near = connect_ends(*a, *b);
    ASSERT_TRUE(near.ok()) << near.status();
    (*near)->send(frame_with(1, {size_t{1} << 20}, owner));
  }
  a->transport->stop();
  b->transport->stop();
  EXPECT_EQ(owner.use_count(), 1);
  a->sink.forget_connections();
  b->sink.forget_connections();
  b->sink.take_frames();
  a->transport.reset();
  b->transport.reset();
  EXPECT_EQ(open_descriptors(), descriptors);
}

TEST(SameHostTransportTest, ADialWithoutAFreeSlotFailsAndALaterOneWorks) {
  rlimit limit = {};
  ::getrlimit(RLIMIT_NOFILE, &limit);
  if (limit.rlim_max < 20000) GTEST_SKIP() << "this user may open few files";
  const rlimit old = limit;
  limit.rlim_cur = 20000;
  ASSERT_EQ(::setrlimit(RLIMIT_NOFILE, &limit), 0);
  HeldTimers clock;
  {
    auto a = started_end(clock, 1, {.ring_bytes = 256});
    auto b = same_host_end(clock, 2, {.most_waiting = 2000});  // it does not start yet
    std::vector<Future<ConnectionPtr>> dials;
    for (size_t i = 0; i < WakeBits::kSlots; ++i) {
      dials.push_back(dial_from(*a, b->transport->address(), b->identity,
                                clock.now() + std::chrono::seconds(1000)));
    }
    const absl::Status status =
        dial_from(*a, b->transport->address(), b->identity, kNever).result().status();
    EXPECT_TRUE(absl::IsResourceExhausted(status)) << status;
    EXPECT_FALSE(answered_by_peer(status));
    clock.fire(std::chrono::seconds(2000));
    for (auto& each : dials) {
      EXPECT_TRUE(absl::IsDeadlineExceeded(each.result().status())) << each.result().status();
    }
    EXPECT_TRUE(b->transport->start(b->identity, &b->sink).ok());
    const auto last = connect_ends(*a, *b);
    EXPECT_TRUE(last.ok()) << last.status();
  }
  ::setrlimit(RLIMIT_NOFILE, &old);
}

// ---- a peer that has gone wrong

TEST(SameHostTransportTest, APeerThatCorruptsTheWakeWordsDelaysOthersByASecondAtMost) {
  SystemClock clock;
  auto a = started_end(clock, 1), b = started_end(clock, 2, {.spin = Nanoseconds::zero()});
  const auto near = connect_ends(*a, *b);
  ASSERT_TRUE(near.ok()) << near.status();
  RawPeer hostile(*b);
  std::atomic<bool> done{false};
  std::thread corrupts([&] {
    WakeBits& bits = hostile.far_page->bits();
    while (!done.load()) {
      bits.armed.store(0);
      bits.word.sleepers.store(0);
      std::this_thread::yield();
    }
  });
  const TimePoint begun = clock.now();
  EXPECT_TRUE((*near)->send(frame_with(1, {})));
  EXPECT_TRUE(b->sink.wait_for_frames(1));
  EXPECT_LT(clock.now() - begun, WakeBits::kLongestSleep + std::chrono::seconds(5));
  done.store(true);
  corrupts.join();
}

TEST(SameHostTransportTest, SignalsForSlotsThatNobodyHasDoNoHarm) {
  SystemClock clock;
  auto a = started_end(clock, 1), b = started_end(clock, 2);
  const auto near = connect_ends(*a, *b);
  ASSERT_TRUE(near.ok()) << near.status();
  RawPeer hostile(*b);
  for (int round = 0; round < 20; ++round) {
    for (size_t slot = 0; slot < WakeBits::kSlots; ++slot) hostile.far_page->bits().signal(slot);
  }
  EXPECT_TRUE((*near)->send(frame_with(1, {})));
  EXPECT_TRUE(b->sink.wait_for_frames(1));
}

TEST(SameHostTransportTest, AViolationInTheRingEndsThisConnectionOnly) {
  SystemClock clock;
  auto a = started_end(clock, 1), b = started_end(clock, 2);
  const auto near = connect_ends(*a, *b);
  ASSERT_TRUE(near.ok()) << near.status();
  RawPeer hostile(*b);
  hostile.memory.ring(rpc_internal::PairMemory::kDialler).tail.store(7);
  hostile.far_page->bits().signal(hostile.slot);
  ASSERT_TRUE(b->sink.wait_for_closed(1));
  EXPECT_TRUE(absl::IsInvalidArgument(b->sink.reasons()[0])) << b->sink.reasons()[0];
  EXPECT_TRUE(eventually([&] { return hostile.socket.closed_by_peer(); }));
  EXPECT_TRUE((*near)->send(frame_with(1, {})));
  EXPECT_TRUE(b->sink.wait_for_frames(1));
}

// ---- an acceptor that has gone wrong

class AcceptorTest : public ::testing::Test {
 protected:
  // Dials a listener of the test, and answers with `welcome` and `descriptors`.
  absl::Status dial(const std::string& welcome, const std::vector<int>& descriptors = {}) {
    auto dialled = dial_from(*a_, rpc_internal::local_address(listener_.name()),
                             {"group", "far", {9, 1}}, soon());
    LocalSocket socket = listener_.accept(soon()).value();
    EXPECT_TRUE(socket.receive(soon()).ok());
    if (!welcome.empty()) {
      EXPECT_TRUE(socket.send(welcome, descriptors, soon()).ok());
    }
    socket.shut_down();
    return dialled.result().status();
  }
  Introduction welcome() {
    Introduction welcome;
    welcome.hello = rpc_internal::hello_of({"group", "far", {9, 1}});
    return welcome;
  }

  SystemClock clock_;
  std::unique_ptr<End> a_ = started_end(clock_, 1);
  LocalListener listener_ = LocalListener::create().value();
};

TEST_F(AcceptorTest, AWrongAnswerIsNoAnswer) {
  for (const std::string& text : {std::string(), std::string("rubbish"), std::string(5000, 'x'),
                                  encode_introduction(welcome())}) {
    const absl::Status status = dial(text, {});
    EXPECT_FALSE(status.ok());
    EXPECT_FALSE(answered_by_peer(status)) << status;
  }
}

TEST_F(AcceptorTest, ARefusalWithoutAnErrorIsAnErrorNevertheless) {
  Introduction refused = welcome();
  refused.hello.mutable_refused()->set_code(0);
  const absl::Status status = dial(encode_introduction(refused));
  EXPECT_TRUE(absl::IsUnknown(status)) << status;
  EXPECT_TRUE(answered_by_peer(status));
}

TEST_F(AcceptorTest, AnotherWorkerInTheWelcomeIsAnAnswer) {
  Introduction other = welcome();
  other.hello.set_worker(WorkerId{9, 2}.bits());
  const absl::Status status = dial(encode_introduction(other));
  EXPECT_TRUE(absl::IsFailedPrecondition(status)) << status;
  EXPECT_THAT(std::string(status.message()), HasSubstr("answers there"));
  EXPECT_TRUE(answered_by_peer(status));
}

TEST_F(AcceptorTest, WithoutTheNonceTheMemoryIsNotTheSame) {
  const auto page = rpc_internal::WakePage::create().value();
  const absl::Status status = dial(encode_introduction(welcome()), {page->descriptor()});
  EXPECT_TRUE(absl::IsFailedPrecondition(status)) << status;
  EXPECT_THAT(std::string(status.message()), HasSubstr("does not see the same memory"));
  EXPECT_FALSE(answered_by_peer(status));
}

}  // namespace
}  // namespace weft
