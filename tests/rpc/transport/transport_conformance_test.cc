// The promises of every transport (rpc/transport/transport.h), tested over every transport.
#include <atomic>
#include <cstring>
#include <map>
#include <memory>
#include <string>
#include <thread>
#include <utility>
#include <vector>

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "weft/tests/rpc/transport/transport_ends.h"
#include "weft/tests/support/eventually.h"

namespace weft {
namespace {

using std::chrono::seconds;
using testing::End;
using ::testing::HasSubstr;
using testing::kPatience;
using testing::numbered_frame;
using testing::TransportConformanceTest;
using testing::TransportKind;

void expect_same(const Frame& sent, const Frame& got) {
  EXPECT_EQ(sent.header.sequence, got.header.sequence);
  EXPECT_EQ(sent.body, got.body);
  ASSERT_EQ(sent.payloads.size(), got.payloads.size());
  for (size_t i = 0; i < sent.payloads.size(); ++i) {
    ASSERT_EQ(sent.payloads[i].size, got.payloads[i].size);
    EXPECT_NE(sent.payloads[i].data, got.payloads[i].data);
    EXPECT_EQ(std::memcmp(sent.payloads[i].data, got.payloads[i].data, sent.payloads[i].size), 0);
  }
}

TEST_P(TransportConformanceTest, FramesTravelBothWaysSmallAndLarge) {
  auto a = started(1), b = started(2);
  const auto near = connect(*a, *b);
  ASSERT_TRUE(near.ok()) << near.status();
  const ConnectionPtr far = b->sink.wait_for_connection();
  ASSERT_NE(far, nullptr);
  EXPECT_EQ((*near)->peer().id, b->identity.id);
  EXPECT_EQ(far->peer().id, a->identity.id);
  EXPECT_EQ(far->peer().name, "w1");
  EXPECT_EQ(far->peer().role, "default");
  EXPECT_EQ((*near)->peer().role, "default");
  EXPECT_EQ(far->peer().group, "group");
  std::map<uint64_t, FramePtr> sent;
  for (size_t size : {0, 1, 5000, 32768, 65536, 70000, 1 << 20, (8 << 20) + 3}) {
    const uint64_t number = sent.size() + 1;
    sent[number] = numbered_frame(number, size);
    EXPECT_TRUE((*near)->send(sent[number]));
    EXPECT_TRUE(far->send(sent[number]));
  }
  for (End* end : {a.get(), b.get()}) {
    ASSERT_TRUE(end->sink.wait_for_frames(sent.size()));
    const std::vector<Frame> frames = end->sink.take_frames();
    ASSERT_EQ(frames.size(), sent.size());
    for (const Frame& frame : frames) expect_same(*sent[frame.header.sequence], frame);
  }
}

TEST_P(TransportConformanceTest, SmallFramesKeepTheirOrder) {
  auto a = started(1), b = started(2);
  const auto near = connect(*a, *b);
  ASSERT_TRUE(near.ok()) << near.status();
  for (uint64_t i = 1; i <= 5000; ++i) ASSERT_TRUE((*near)->send(numbered_frame(i, i % 50)));
  ASSERT_TRUE(b->sink.wait_for_frames(5000));
  const std::vector<Frame> frames = b->sink.take_frames();
  for (uint64_t i = 1; i <= 5000; ++i) ASSERT_EQ(frames[i - 1].header.sequence, i);
}

TEST_P(TransportConformanceTest, WhatWasQueuedArrivesBeforeAnOrderlyClose) {
  auto a = started(1), b = started(2);
  const auto near = connect(*a, *b);
  ASSERT_TRUE(near.ok()) << near.status();
  ASSERT_NE(b->sink.wait_for_connection(), nullptr);
  for (uint64_t i = 1; i <= 300; ++i) ASSERT_TRUE((*near)->send(numbered_frame(i, 2000)));
  (*near)->close();
  for (End* end : {a.get(), b.get()}) {
    ASSERT_TRUE(end->sink.wait_for_closed(1)) << end->identity.name;
    EXPECT_TRUE(end->sink.reasons()[0].ok()) << end->sink.reasons()[0];
  }
  EXPECT_EQ(b->sink.take_frames().size(), 300u);
  EXPECT_FALSE((*near)->send(numbered_frame(1)));
  (*near)->close();  // closing once more does no harm
}

TEST_P(TransportConformanceTest, AnAbortIsReportedAtBothEndsHereWithItsReason) {
  auto a = started(1), b = started(2);
  for (const bool at_dialler : {true, false}) {
    const size_t ended = b->sink.reasons().size();
    const auto near = connect(*a, *b);
    ASSERT_TRUE(near.ok()) << near.status();
    const ConnectionPtr far = b->sink.wait_for_connection(ended + 1);
    ASSERT_NE(far, nullptr);
    const ConnectionPtr& end = at_dialler ? *near : far;
    End& here = at_dialler ? *a : *b;
    const absl::Status reason = absl::UnavailableError(here.identity.name + " gave up");
    end->abort(reason);
    EXPECT_FALSE(end->send(numbered_frame(1)));
    ASSERT_TRUE(a->sink.wait_for_closed(ended + 1));
    ASSERT_TRUE(b->sink.wait_for_closed(ended + 1));
    EXPECT_THAT(here.sink.reasons(), ::testing::Contains(reason));
    end->abort(absl::UnavailableError("once more"));  // does no harm
    end->close();
  }
  EXPECT_TRUE(connect(*a, *b).ok());
}

TEST_P(TransportConformanceTest, EndingInTheMidstOfTrafficIsReportedOnceAndLast) {
  auto a = started(1), b = started(2);
  b->sink.drop_frames();
  a->sink.drop_frames();
  for (size_t round = 1; round <= 30; ++round) {
    const auto near = connect(*a, *b);
    ASSERT_TRUE(near.ok()) << near.status();
    const ConnectionPtr far = b->sink.wait_for_connection(round);
    ASSERT_NE(far, nullptr);
    std::thread sending([&] {
      for (uint64_t i = 1; i < 100000; ++i) {
        if (!(*near)->send(numbered_frame(i))) return;
      }
    });
    far->send(numbered_frame(1));
    const ConnectionPtr& end = round % 2 == 0 ? *near : far;
    round % 4 < 2 ? end->close() : end->abort(absl::UnavailableError("enough"));
    const bool reported = a->sink.wait_for_closed(round);
    sending.join();
    ASSERT_TRUE(reported);
    ASSERT_TRUE(b->sink.wait_for_closed(round));
  }
}

TEST_P(TransportConformanceTest, DiallingNobodyIsUnavailableSoon) {
  auto a = started(1), b = started(2);
  const std::string address = b->transport->address();
  const PeerIdentity identity = b->identity;
  b->transport->stop();
  const Future<ConnectionPtr> future = dial(*a, address, identity);
  ASSERT_TRUE(future.wait_for(seconds(20)));
  EXPECT_EQ(future.result().status().code(), absl::StatusCode::kUnavailable);
}

TEST_P(TransportConformanceTest, AnotherWorkerThanExpectedIsRefusedByName) {
  auto a = started(1), b = started(2);
  for (const WorkerId wrong : {WorkerId{3, 1}, WorkerId{2, 2}}) {  // a restart is another worker
    const auto result = dial(*a, b->transport->address(), {"group", "w3", wrong}).result().status();
    EXPECT_EQ(result.code(), absl::StatusCode::kFailedPrecondition) << result;
    EXPECT_THAT(std::string(result.message()), HasSubstr("'w2'"));
  }
  EXPECT_TRUE(b->sink.accepted().empty());
}

TEST_P(TransportConformanceTest, AWorkerOfAnEarlierVersionConnectsInBothDirections) {
  auto a = listening(1), b = started(2);
  a->identity.protocols.newest = kProtocols.oldest;
  ASSERT_TRUE(a->transport->start(a->identity, &a->sink).ok());
  for (const auto& [from, to] : {std::pair{a.get(), b.get()}, std::pair{b.get(), a.get()}}) {
    auto connection = connect(*from, *to);
    ASSERT_TRUE(connection.ok()) << connection.status();
    (*connection)->send({numbered_frame(1)});
    EXPECT_TRUE(to->sink.wait_for_frames(1));
  }
}

TEST_P(TransportConformanceTest, AWorkerWithoutACommonVersionIsRefusedOnBothEnds) {
  if (GetParam() == TransportKind::kInproc) GTEST_SKIP() << "one program has one version";
  auto a = listening(1), b = started(2);
  a->identity.protocols = {kProtocols.newest + 1, kProtocols.newest + 2};
  ASSERT_TRUE(a->transport->start(a->identity, &a->sink).ok());
  for (const auto& [from, to] : {std::pair{a.get(), b.get()}, std::pair{b.get(), a.get()}}) {
    const absl::Status refused = connect(*from, *to).status();
    EXPECT_EQ(refused.code(), absl::StatusCode::kPermissionDenied) << refused;
    EXPECT_THAT(std::string(refused.message()), HasSubstr("versions"));
  }
}

TEST_P(TransportConformanceTest, AWorkerOfAnotherGroupIsRefused) {
  auto a = listening(1), b = started(2);
  a->identity.group = "another";
  ASSERT_TRUE(a->transport->start(a->identity, &a->sink).ok());
  const absl::Status status = connect(*a, *b).status();
  EXPECT_EQ(status.code(), absl::StatusCode::kPermissionDenied) << status;
  EXPECT_THAT(std::string(status.message()), HasSubstr("group 'another'"));
}

TEST_P(TransportConformanceTest, ARefusalReachesTheDiallerAndOpensNothing) {
  auto a = started(1), b = started(2);
  b->sink.set_refusal(absl::ResourceExhaustedError("too many friends"));
  const absl::Status status = connect(*a, *b).status();
  EXPECT_EQ(status.code(), absl::StatusCode::kResourceExhausted) << status;
  EXPECT_THAT(std::string(status.message()), HasSubstr("too many friends"));
  b->sink.set_refusal(absl::OkStatus());
  EXPECT_TRUE(connect(*a, *b).ok());  // the next one is accepted
  ASSERT_NE(b->sink.wait_for_connection(), nullptr);
  EXPECT_EQ(b->sink.accepted().size(), 2u);
  EXPECT_TRUE(b->sink.reasons().empty());
}

TEST_P(TransportConformanceTest, WhoDialsBeforeTheStartWaitsForIt) {
  auto a = started(1), b = listening(2);
  const Future<ConnectionPtr> future = dial(*a, b->transport->address(), b->identity);
  EXPECT_FALSE(future.wait_for(std::chrono::milliseconds(100)));
  ASSERT_TRUE(b->transport->start(b->identity, &b->sink).ok());
  ASSERT_TRUE(future.wait_for(kPatience));
  ASSERT_TRUE(future.result().ok()) << future.result().status();
  EXPECT_TRUE(future.wait()->send(numbered_frame(1)));
  EXPECT_TRUE(b->sink.wait_for_frames(1));
}

TEST_P(TransportConformanceTest, NoAnswerWithinTheDeadlineIsDeadlineExceeded) {
  auto a = started(1), b = listening(2);
  const absl::Status status =
      dial(*a, b->transport->address(), b->identity, std::chrono::milliseconds(50))
          .result()
          .status();
  EXPECT_EQ(status.code(), absl::StatusCode::kDeadlineExceeded) << status;
  // The transport reports nothing of the dialler that gave up.
  ASSERT_TRUE(b->transport->start(b->identity, &b->sink).ok());
  ASSERT_TRUE(connect(*a, *b).ok());
  ASSERT_NE(b->sink.wait_for_connection(), nullptr);
}

TEST_P(TransportConformanceTest, TheCallbackNeverRunsInsideConnect) {
  auto a = started(1), b = started(2);
  const std::thread::id here = std::this_thread::get_id();
  for (const std::string& address : {b->transport->address(), std::string("127.0.0.1:1")}) {
    Promise<std::thread::id> promise;
    Future<std::thread::id> future = promise.future();
    a->sink.expect_dialling();
    a->transport->connect(address, b->identity, clock_.now() + kPatience,
                          [promise = std::move(promise)](absl::StatusOr<ConnectionPtr>) {
                            promise.set(std::this_thread::get_id());
                          });
    EXPECT_NE(future.wait(), here);
  }
}

TEST_P(TransportConformanceTest, StoppingInTheMidstOfTrafficHarmsNobody) {
  for (int round = 0; round < 50; ++round) {
    auto a = started(1), b = started(2);
    a->sink.drop_frames();
    b->sink.drop_frames();
    const auto near = connect(*a, *b);
    ASSERT_TRUE(near.ok()) << near.status();
    const ConnectionPtr far = b->sink.wait_for_connection();
    std::atomic<bool> over{false};
    auto traffic = [&](const ConnectionPtr& connection) {
      for (uint64_t i = 1; !over && i < 20000; ++i) {
        if (!connection->send(numbered_frame(i, i % 500 == 0 ? 100000 : 10))) return;
      }
    };
    std::thread one([&] { traffic(*near); });
    std::thread other([&] { traffic(far); });
    b->sink.wait_for_frames(1);
    (round % 2 == 0 ? a : b)->transport->stop();
    over = true;
    const bool reported = (round % 2 == 0 ? b : a)->sink.wait_for_closed(1);
    one.join();
    other.join();
    ASSERT_TRUE(reported);
    (round % 2 == 0 ? a : b)->transport->stop();  // twice
  }
}

// Once the frame is released, the sender may write to its memory again. So the transport must not
// read it afterwards.
TEST_P(TransportConformanceTest, PayloadsAreReleasedAfterTheSendAndNotReadLater) {
  auto a = started(1), b = started(2);
  const auto near = connect(*a, *b);
  ASSERT_TRUE(near.ok()) << near.status();
  constexpr size_t kFrames = 20, kSize = size_t{3} << 20;
  std::vector<Future<void>> released;
  for (uint64_t i = 1; i <= kFrames; ++i) {
    auto promise = std::make_shared<Promise<void>>();
    released.push_back(promise->future());
    auto* block = new std::vector<std::byte>(kSize, static_cast<std::byte>(i));
    Frame frame = *numbered_frame(i);
    frame.payloads.push_back(
        {block->data(), kSize, std::shared_ptr<void>(block->data(), [block, promise](void*) {
           std::memset(block->data(), 0xEE, kSize);
           delete block;
           promise->set_value();
         })});
    ASSERT_TRUE((*near)->send(std::make_shared<const Frame>(std::move(frame))));
  }
  ASSERT_TRUE(b->sink.wait_for_frames(kFrames));
  for (const Future<void>& future : released) ASSERT_TRUE(future.wait_for(kPatience));
  EXPECT_TRUE(testing::eventually([&] {
    for (const StreamBytes& kind : (*near)->streams_of(*numbered_frame(1, kSize))) {
      if (kind.taken != kind.written) return false;
    }
    return true;
  }));
  for (const Frame& frame : b->sink.take_frames()) {
    const Payload& payload = frame.payloads.at(0);
    const std::vector<std::byte> wanted(kSize, static_cast<std::byte>(frame.header.sequence));
    EXPECT_EQ(std::memcmp(payload.data, wanted.data(), kSize), 0) << frame.header.sequence;
  }
}

TEST_P(TransportConformanceTest, AFrameBeyondTheLimitEndsTheConnection) {
  TransportLimits small;
  small.max_frame_bytes = 100000;
  auto a = started(1), b = started(2, small);
  const auto near = connect(*a, *b);
  ASSERT_TRUE(near.ok()) << near.status();
  (*near)->send(numbered_frame(1, 200000));
  ASSERT_TRUE(b->sink.wait_for_closed(1));
  EXPECT_EQ(b->sink.reasons()[0].code(), absl::StatusCode::kInvalidArgument)
      << b->sink.reasons()[0];
  ASSERT_TRUE(a->sink.wait_for_closed(1));
  EXPECT_TRUE(b->sink.take_frames().empty());
}

TEST_P(TransportConformanceTest, ManyPeersTalkAtOnce) {
  std::vector<std::unique_ptr<End>> ends;
  for (uint32_t i = 1; i <= 5; ++i) ends.push_back(started(i));
  for (auto& from : ends) {
    for (auto& to : ends) {
      if (from == to) continue;
      const auto connection = connect(*from, *to);
      ASSERT_TRUE(connection.ok()) << connection.status();
      for (uint64_t i = 1; i <= 50; ++i) (*connection)->send(numbered_frame(i, i * 100));
    }
  }
  for (auto& end : ends) EXPECT_TRUE(end->sink.wait_for_frames(200)) << end->identity.name;
}

INSTANTIATE_TEST_SUITE_P(Transports, TransportConformanceTest,
                         ::testing::Values(TransportKind::kInproc, TransportKind::kGrpc,
                                           TransportKind::kGrpcSpinning, TransportKind::kGrpcTls,
                                           TransportKind::kGrpcLocal, TransportKind::kSameHost,
                                           TransportKind::kSameHostSpinning,
                                           TransportKind::kFallback),
                         [](const auto& info) { return testing::to_string(info.param); });

// Only the inproc network can do these.
class WiresTest : public TransportConformanceTest {};
INSTANTIATE_TEST_SUITE_P(Inproc, WiresTest, ::testing::Values(TransportKind::kInproc));

TEST_P(WiresTest, AKilledProcessNeitherAnswersNorDials) {
  auto a = started(1), b = started(2);
  const auto near = connect(*a, *b);
  ASSERT_TRUE(near.ok()) << near.status();
  network_.kill(b->transport->address());
  ASSERT_TRUE(a->sink.wait_for_closed(1));
  EXPECT_EQ(connect(*a, *b).status().code(), absl::StatusCode::kUnavailable);
  EXPECT_EQ(connect(*b, *a).status().code(), absl::StatusCode::kUnavailable);
}

}  // namespace
}  // namespace weft
