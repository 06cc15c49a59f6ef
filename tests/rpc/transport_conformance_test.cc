// What every transport promises (rpc/transport.h), over every transport there is.
#include <arpa/inet.h>
#include <cstring>
#include <map>
#include <netinet/in.h>
#include <random>
#include <set>
#include <sys/socket.h>
#include <thread>
#include <unistd.h>

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "weft/base/future.h"
#include "weft/rpc/grpc_transport.h"
#include "weft/rpc/inproc_transport.h"
#include "weft/tests/rpc/support/raw_stream.h"
#include "weft/tests/support/agent_world.h"
#include "weft/tests/support/eventually.h"

namespace weft {
namespace {

using std::chrono::seconds;
using ::testing::HasSubstr;
using testing::TransportKind;

constexpr seconds kPatience{60};

// Notes what a transport reports, and that it reports it in the order that it promises.
class Recorder final : public TransportSink {
 public:
  absl::Status on_accept(const PeerIdentity& peer) override {
    MutexLock lock(mutex_);
    accepted_.push_back(peer);
    if (peer.group != "group") {
      return absl::PermissionDeniedError("group '" + peer.group + "' is another job's");
    }
    return refusal_;
  }
  void on_open(const ConnectionPtr& connection) override {
    MutexLock lock(mutex_);
    if (!opened_.insert(connection.get()).second) complain("opened twice");
    if (has_closed(connection)) complain("opened after it was closed");
    connections_.push_back(connection);
    changed_.notify_all();
  }
  void on_frames(const ConnectionPtr& connection, std::vector<Frame> frames) override {
    MutexLock lock(mutex_);
    if (frames.empty()) complain("no frames");
    if (has_closed(connection)) complain("a frame after on_closed");
    if (!dialled_ && !opened_.contains(connection.get())) complain("a frame before on_open");
    count_ += frames.size();
    if (keep_) std::move(frames.begin(), frames.end(), std::back_inserter(frames_));
    changed_.notify_all();
  }
  void on_closed(const ConnectionPtr& connection, absl::Status reason) override {
    MutexLock lock(mutex_);
    if (!closed_.emplace(connection.get(), reason).second) complain("closed twice");
    kept_.push_back(connection);
    changed_.notify_all();
  }

  void set_refusal(absl::Status status) {
    MutexLock lock(mutex_);
    refusal_ = std::move(status);
  }
  // This end dials: on_open is the callback's business.
  void expect_dialling() {
    MutexLock lock(mutex_);
    dialled_ = true;
  }
  void drop_frames() {
    MutexLock lock(mutex_);
    keep_ = false;
  }

  bool wait_for_frames(size_t count) {
    return wait([&]() ABSL_NO_THREAD_SAFETY_ANALYSIS { return count_ >= count; });
  }
  bool wait_for_closed(size_t count) {
    return wait([&]() ABSL_NO_THREAD_SAFETY_ANALYSIS { return closed_.size() >= count; });
  }
  // The latest, once so many were accepted.
  ConnectionPtr wait_for_connection(size_t count = 1) {
    if (!wait([&]() ABSL_NO_THREAD_SAFETY_ANALYSIS { return connections_.size() >= count; })) {
      return nullptr;
    }
    MutexLock lock(mutex_);
    return connections_.back();
  }
  std::vector<Frame> take_frames() {
    MutexLock lock(mutex_);
    return std::exchange(frames_, {});
  }
  std::vector<PeerIdentity> accepted() {
    MutexLock lock(mutex_);
    return accepted_;
  }
  std::vector<absl::Status> reasons() {
    MutexLock lock(mutex_);
    std::vector<absl::Status> all;
    for (const auto& [connection, reason] : closed_) all.push_back(reason);
    return all;
  }
  std::string complaints() {
    MutexLock lock(mutex_);
    return complaints_;
  }

 private:
  void complain(const char* text) ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_) {
    complaints_ += std::string(text) + "; ";
  }
  bool has_closed(const ConnectionPtr& connection) ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_) {
    return closed_.contains(connection.get());
  }
  template <class Condition>
  bool wait(Condition condition) {
    const TimePoint deadline = std::chrono::steady_clock::now() + kPatience;
    MutexLock lock(mutex_);
    while (!condition()) {
      if (!changed_.wait_until(mutex_, deadline)) return condition();
    }
    return true;
  }

  Mutex mutex_;
  CondVar changed_;
  absl::Status refusal_ ABSL_GUARDED_BY(mutex_);
  bool dialled_ ABSL_GUARDED_BY(mutex_) = false;
  bool keep_ ABSL_GUARDED_BY(mutex_) = true;
  size_t count_ ABSL_GUARDED_BY(mutex_) = 0;
  std::vector<PeerIdentity> accepted_ ABSL_GUARDED_BY(mutex_);
  std::vector<ConnectionPtr> connections_ ABSL_GUARDED_BY(mutex_);
  std::vector<ConnectionPtr> kept_ ABSL_GUARDED_BY(mutex_);  // addresses stay taken
  std::set<Connection*> opened_ ABSL_GUARDED_BY(mutex_);
  std::map<Connection*, absl::Status> closed_ ABSL_GUARDED_BY(mutex_);
  std::vector<Frame> frames_ ABSL_GUARDED_BY(mutex_);
  std::string complaints_ ABSL_GUARDED_BY(mutex_);
};

struct End {
  std::unique_ptr<Transport> transport;
  Recorder sink;
  PeerIdentity identity;

  ~End() {
    if (transport != nullptr) transport->stop();
    EXPECT_EQ(sink.complaints(), "") << identity.name;
  }
};

FramePtr frame_of(uint64_t number, size_t payload = 0) {
  Frame frame = testing::frame_of("body " + std::to_string(number), payload);
  frame.header.kind = FrameKind::kCall;
  frame.header.sequence = number;
  return std::make_shared<const Frame>(std::move(frame));
}

class TransportConformanceTest : public ::testing::TestWithParam<TransportKind> {
 protected:
  TransportConformanceTest()
      : wires_(clock_, {.name = "wires", .threads = 3}), network_(clock_, wires_) {}
  ~TransportConformanceTest() override { wires_.stop(); }

  std::unique_ptr<Transport> make(TransportLimits limits = {}) {
    if (GetParam() == TransportKind::kInproc) {
      return std::make_unique<InprocTransport>(network_, limits);
    }
    GrpcTransportOptions options;
    options.limits = limits;
    if (GetParam() == TransportKind::kGrpcSpinning) options.spin = kPatience;
    return std::make_unique<GrpcTransport>(clock_, options);
  }
  std::unique_ptr<End> listening(uint32_t index, TransportLimits limits = {}) {
    auto end = std::make_unique<End>();
    end->transport = make(limits);
    end->identity = {"group", "w" + std::to_string(index), {index, 1}};
    EXPECT_TRUE(end->transport->listen().ok());
    return end;
  }
  std::unique_ptr<End> started(uint32_t index, TransportLimits limits = {}) {
    auto end = listening(index, limits);
    EXPECT_TRUE(end->transport->start(end->identity, &end->sink).ok());
    return end;
  }
  Future<ConnectionPtr> dial(End& from, const std::string& address, const PeerIdentity& expected,
                             Nanoseconds patience = kPatience) {
    from.sink.expect_dialling();
    Promise<ConnectionPtr> promise;
    Future<ConnectionPtr> future = promise.future();
    from.transport->connect(address, expected, clock_.now() + patience,
                            [promise = std::move(promise)](absl::StatusOr<ConnectionPtr> result) {
                              promise.set(std::move(result));
                            });
    return future;
  }
  absl::StatusOr<ConnectionPtr> connect(End& from, End& to) {
    return dial(from, to.transport->address(), to.identity).result();
  }

  SystemClock clock_;
  ThreadExecutor wires_;
  InprocNetwork network_;
};

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
  EXPECT_EQ(far->peer().group, "group");
  std::map<uint64_t, FramePtr> sent;
  for (size_t size : {0, 1, 5000, 32768, 65536, 70000, 1 << 20, (8 << 20) + 3}) {
    const uint64_t number = sent.size() + 1;
    sent[number] = frame_of(number, size);
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
  for (uint64_t i = 1; i <= 5000; ++i) ASSERT_TRUE((*near)->send(frame_of(i, i % 50)));
  ASSERT_TRUE(b->sink.wait_for_frames(5000));
  const std::vector<Frame> frames = b->sink.take_frames();
  for (uint64_t i = 1; i <= 5000; ++i) ASSERT_EQ(frames[i - 1].header.sequence, i);
}

TEST_P(TransportConformanceTest, WhatWasQueuedArrivesBeforeAnOrderlyClose) {
  auto a = started(1), b = started(2);
  const auto near = connect(*a, *b);
  ASSERT_TRUE(near.ok()) << near.status();
  ASSERT_NE(b->sink.wait_for_connection(), nullptr);
  for (uint64_t i = 1; i <= 300; ++i) ASSERT_TRUE((*near)->send(frame_of(i, 2000)));
  (*near)->close();
  for (End* end : {a.get(), b.get()}) {
    ASSERT_TRUE(end->sink.wait_for_closed(1)) << end->identity.name;
    EXPECT_TRUE(end->sink.reasons()[0].ok()) << end->sink.reasons()[0];
  }
  EXPECT_EQ(b->sink.take_frames().size(), 300u);
  EXPECT_FALSE((*near)->send(frame_of(1)));
  (*near)->close();  // once more does no harm
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
    EXPECT_FALSE(end->send(frame_of(1)));
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
        if (!(*near)->send(frame_of(i))) return;
      }
    });
    far->send(frame_of(1));
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
  for (const WorkerId wrong : {WorkerId{3, 1}, WorkerId{2, 2}}) {  // another life is another worker
    const auto result = dial(*a, b->transport->address(), {"group", "w3", wrong}).result().status();
    EXPECT_EQ(result.code(), absl::StatusCode::kFailedPrecondition) << result;
    EXPECT_THAT(std::string(result.message()), HasSubstr("'w2'"));
  }
  EXPECT_TRUE(b->sink.accepted().empty());
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
  EXPECT_TRUE(connect(*a, *b).ok());  // the next one is welcome
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
  EXPECT_TRUE(future.wait()->send(frame_of(1)));
  EXPECT_TRUE(b->sink.wait_for_frames(1));
}

TEST_P(TransportConformanceTest, NoAnswerWithinTheDeadlineIsDeadlineExceeded) {
  auto a = started(1), b = listening(2);
  const absl::Status status =
      dial(*a, b->transport->address(), b->identity, std::chrono::milliseconds(50))
          .result()
          .status();
  EXPECT_EQ(status.code(), absl::StatusCode::kDeadlineExceeded) << status;
  // Nobody is told of the dialler that gave up.
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
        if (!connection->send(frame_of(i, i % 500 == 0 ? 100000 : 10))) return;
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

// The sender may write to its memory again once the frame has let go of it, so nothing of the
// transport may look at it afterwards.
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
    Frame frame = *frame_of(i);
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
    for (const LaneBytes& lane : (*near)->lanes_of(*frame_of(1, kSize))) {
      if (lane.taken != lane.written) return false;
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
  (*near)->send(frame_of(1, 200000));
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
      for (uint64_t i = 1; i <= 50; ++i) (*connection)->send(frame_of(i, i * 100));
    }
  }
  for (auto& end : ends) EXPECT_TRUE(end->sink.wait_for_frames(200)) << end->identity.name;
}

INSTANTIATE_TEST_SUITE_P(Transports, TransportConformanceTest,
                         ::testing::Values(TransportKind::kInproc, TransportKind::kGrpc,
                                           TransportKind::kGrpcSpinning),
                         [](const auto& info) { return testing::to_string(info.param); });

// What only the wires inside a process can do.
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

// What only a socket can do.
class SocketTransportTest : public TransportConformanceTest {};
INSTANTIATE_TEST_SUITE_P(Grpc, SocketTransportTest,
                         ::testing::Values(TransportKind::kGrpc, TransportKind::kGrpcSpinning));

// A worker that dies while this one is still joining: its end must not be lost.
TEST_P(SocketTransportTest, WhoGaveUpBeforeTheStartIsNotLeftOpen) {
  auto a = started(1), b = listening(2);
  for (int i = 0; i < 10; ++i) {  // the first have certainly ended at b when the last has
    const Future<ConnectionPtr> given_up =
        dial(*a, b->transport->address(), b->identity, std::chrono::milliseconds(20));
    EXPECT_FALSE(given_up.result().ok());
  }
  a->transport->stop();
  ASSERT_TRUE(b->transport->start(b->identity, &b->sink).ok());
  auto c = started(3);
  ASSERT_TRUE(connect(*c, *b).ok());
  EXPECT_TRUE(b->sink.wait_for_closed(b->sink.accepted().size() - 1));
}

TEST_P(SocketTransportTest, LooksForMessagesOnlyWhereItMay) {
  for (const bool may : {true, false}) {
    GrpcTransportOptions options;
    options.spin = may ? kPatience : Nanoseconds::zero();
    auto a = started(1);
    End b;
    auto transport = std::make_unique<GrpcTransport>(clock_, options);
    const GrpcTransport& looking = *transport;
    b.transport = std::move(transport);
    b.identity = {"group", "w2", {2, 1}};
    ASSERT_TRUE(b.transport->start(b.identity, &b.sink).ok());
    const auto connection = connect(*a, b);
    ASSERT_TRUE(connection.ok());
    for (size_t i = 1; i <= 100; ++i) {
      EXPECT_TRUE((*connection)->send(frame_of(i)));
      ASSERT_TRUE(b.sink.wait_for_frames(i));
    }
    EXPECT_EQ(looking.looks() > 0, may);
  }
}

TEST_P(SocketTransportTest, APortInUseIsUnavailableAndNamed) {
  auto a = started(1);
  GrpcTransportOptions options;
  options.listen_address = a->transport->address();
  GrpcTransport second(clock_, options);
  const absl::Status status = second.listen();
  EXPECT_EQ(status.code(), absl::StatusCode::kUnavailable);
  EXPECT_THAT(std::string(status.message()), HasSubstr(a->transport->address()));
}

// What the resolver says is no sign that the far end is dead.
TEST_P(SocketTransportTest, DiallingAHostWithoutAnAddressIsNoAnswer) {
  auto a = started(1);
  const Future<ConnectionPtr> future =
      dial(*a, "weft.invalid:1", {"group", "w2", {2, 1}}, std::chrono::seconds(3));
  ASSERT_TRUE(future.wait_for(seconds(20)));
  EXPECT_EQ(future.result().status().code(), absl::StatusCode::kDeadlineExceeded)
      << future.result().status();
}

TEST_P(SocketTransportTest, AnAddressWithoutAPortIsInvalidAndNamed) {
  for (const char* address : {"localhost", ":80", ""}) {
    GrpcTransportOptions options;
    options.listen_address = address;
    GrpcTransport transport(clock_, options);
    const absl::Status status = transport.listen();
    EXPECT_EQ(status.code(), absl::StatusCode::kInvalidArgument);
    EXPECT_THAT(std::string(status.message()), HasSubstr(std::string("'") + address + "'"));
  }
}

TEST_P(SocketTransportTest, RawGarbageOnThePortHarmsNobody) {
  const uint64_t seed = std::random_device()();
  SCOPED_TRACE(::testing::Message() << "seed " << seed);
  std::mt19937_64 random(seed);
  auto a = started(1), b = started(2);
  const auto before = connect(*a, *b);
  ASSERT_TRUE(before.ok());
  const std::string address = b->transport->address();
  sockaddr_in where{};
  where.sin_family = AF_INET;
  where.sin_port = htons(static_cast<uint16_t>(std::stoi(address.substr(address.rfind(':') + 1))));
  where.sin_addr.s_addr = htonl(INADDR_LOOPBACK);
  for (int i = 0; i < 20; ++i) {
    const int socket = ::socket(AF_INET, SOCK_STREAM, 0);
    ASSERT_EQ(::connect(socket, reinterpret_cast<sockaddr*>(&where), sizeof(where)), 0);
    std::string bytes = i % 2 == 0 ? "" : "PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n";
    for (uint64_t n = random() % 5000; n > 0; --n) bytes.push_back(static_cast<char>(random()));
    (void)!::send(socket, bytes.data(), bytes.size(), MSG_NOSIGNAL);
    ::close(socket);
  }
  EXPECT_TRUE((*before)->send(frame_of(1)));
  ASSERT_TRUE(b->sink.wait_for_frames(1));
  EXPECT_TRUE(connect(*a, *b).ok());
}

TEST_P(SocketTransportTest, AStreamOfNonsenseIsEndedAndHarmsNobody) {
  auto a = started(1), b = started(2);
  const auto before = connect(*a, *b);
  ASSERT_TRUE(before.ok());
  const std::string hello_of_nobody = std::string("\0\x04\0\0\0", 5) + "nope";
  const std::string empty_hello("\0\0\0\0\0", 5);
  const std::string frame_first = std::string("\x01\x68\0\0\0", 5) + std::string(104, 'x');
  const std::string endless = std::string("\x02\xff\xff\xff\xff", 5) + "x";
  for (const std::string& text : {hello_of_nobody, empty_hello, frame_first, endless,
                                  std::string("\x09garbage"), std::string("x")}) {
    for (const std::string& hello : {std::string(), std::string("nope"), text}) {
      const testing::RawStream stranger(b->transport->address(), {text}, hello);
      EXPECT_EQ(stranger.wait().error_code(), grpc::StatusCode::FAILED_PRECONDITION);
    }
  }
  EXPECT_EQ(b->sink.accepted().size(), 1u);
  EXPECT_TRUE((*before)->send(frame_of(1)));
  ASSERT_TRUE(b->sink.wait_for_frames(1));
}

}  // namespace
}  // namespace weft
