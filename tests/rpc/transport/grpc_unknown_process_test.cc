// Programs that are no members and open streams to a worker.
//
// Their cost for the worker must be bounded, and their data is checked before anybody uses it.
#include <atomic>
#include <string>
#include <thread>
#include <utility>
#include <vector>

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "weft/base/log.h"
#include "weft/proto/weft.pb.h"
#include "weft/rpc/transport/frame_codec.h"
#include "weft/rpc/transport/grpc_transport.h"
#include "weft/rpc/transport/hello.h"
#include "weft/rpc/transport/internal/grpc_connection.h"
#include "weft/tests/rpc/support/records.h"
#include "weft/tests/rpc/transport/raw_stream.h"

namespace weft {
namespace {

using ::testing::AllOf;
using ::testing::HasSubstr;
using ::testing::Not;
using testing::RawStream;

constexpr size_t kMiB = size_t{1} << 20;
// An upper bound of what gRPC accepts from a far end on a stream that nobody reads: 16 MiB of flow
// control, and what is in flight.
constexpr size_t kUnread = 20 * kMiB;

// Accepts everybody and remembers who came.
class Host final : public TransportSink {
 public:
  absl::Status on_accept(const PeerIdentity& peer) override {
    MutexLock lock(mutex_);
    accepted_.push_back(peer.name);
    return absl::OkStatus();
  }
  void on_open(const ConnectionPtr& connection) override {
    number_ = static_cast<rpc_internal::GrpcConnection&>(*connection).number();
  }
  void on_frames(const ConnectionPtr&, std::vector<Frame>) override {}
  void on_closed(const ConnectionPtr&, absl::Status) override {}
  std::vector<std::string> accepted() {
    MutexLock lock(mutex_);
    return accepted_;
  }
  uint64_t number() const { return number_; }  // of the last connection

 private:
  std::atomic<uint64_t> number_{0};
  Mutex mutex_;
  std::vector<std::string> accepted_ ABSL_GUARDED_BY(mutex_);
};

class GrpcUnknownProcessTest : public ::testing::Test {
 protected:
  GrpcUnknownProcessTest() {
    EXPECT_TRUE(member_.start({"job", "member", {1, 1}}, &member_sink_).ok());
  }
  ~GrpcUnknownProcessTest() override {
    member_.stop();
    if (worker_ != nullptr) worker_->stop();
  }
  void listen(GrpcTransportOptions options = {}) {
    worker_ = std::make_unique<GrpcTransport>(clock_, std::move(options));
    ASSERT_TRUE(worker_->listen().ok());
  }
  void start() { ASSERT_TRUE(worker_->start(identity_, &host_).ok()); }

  // Dials the worker as a member.
  Future<void> dial() {
    Promise<void> dialled(nullptr);
    const Future<void> future = dialled.future();
    member_.connect(worker_->address(), identity_, clock_.now() + std::chrono::seconds(60),
                    [dialled = std::move(dialled)](absl::StatusOr<ConnectionPtr> result) mutable {
                      if (result.ok()) {
                        dialled.set_value();
                      } else {
                        dialled.set_error(result.status());
                      }
                    });
    return future;
  }

  static wire::Hello hello() {
    wire::Hello hello;
    hello.set_protocol(kProtocols.oldest);
    hello.set_group("job");
    hello.set_name("unknown");
    hello.set_worker(WorkerId{7, 1}.bits());
    hello.set_expected(WorkerId{0, 1}.bits());
    hello.set_address("127.0.0.1:1");
    return hello;
  }

  SystemClock clock_;
  const PeerIdentity identity_{"job", "worker", {0, 1}};
  Host host_, member_sink_;
  std::unique_ptr<GrpcTransport> worker_;
  GrpcTransport member_{clock_};
};

// Each process begins a frame of 1 GiB and never completes it.
TEST_F(GrpcUnknownProcessTest, WithoutAHelloHoldNoMemoryAndKeepNobodyOut) {
  listen();
  start();
  Frame frame;
  frame.header.kind = FrameKind::kCall;
  frame.payloads.push_back({nullptr, 1024 * kMiB, nullptr});
  std::vector<std::string> messages{
      rpc_internal::sealed(rpc_internal::unsealed_record(2, rpc_internal::encode_head(frame)))};
  for (int i = 0; i < 64; ++i) {
    messages.push_back(
        rpc_internal::sealed(rpc_internal::unsealed_record(3, std::string(kMiB, 'x'))));
  }
  std::vector<std::unique_ptr<RawStream>> streams;
  for (int i = 0; i < 3; ++i) {
    streams.push_back(std::make_unique<RawStream>(worker_->address(), messages));
  }
  for (const auto& stream : streams) {
    const grpc::Status status = stream->wait();
    EXPECT_EQ(status.error_code(), grpc::StatusCode::FAILED_PRECONDITION) << status.error_message();
    EXPECT_THAT(status.error_message(), HasSubstr("without a hello"));
    EXPECT_LT(stream->taken(), kUnread);
  }
  EXPECT_TRUE(dial().result().ok());
  EXPECT_EQ(host_.accepted(), std::vector<std::string>{"member"});
}

TEST_F(GrpcUnknownProcessTest, WithNamesThatAreNoneAreRefusedBeforeAnybodyReadsThem) {
  listen();
  start();
  const auto refusal = [&](const wire::Hello& hello) {
    const RawStream unknown(worker_->address(), {}, hello.SerializeAsString());
    const grpc::Status status = unknown.wait();
    EXPECT_FALSE(status.ok());
    EXPECT_EQ(printable(status.error_message()), status.error_message());
    return status.error_message();
  };
  wire::Hello forged = hello();
  forged.set_name("a\nweft error: forged \x1b[2J");
  EXPECT_THAT(refusal(forged), AllOf(HasSubstr("worker name 'a\\x0aweft error"),
                                     HasSubstr("letters, digits and any of _ : - .")));
  wire::Hello longer = hello();
  longer.set_name(std::string(5000, 'n'));
  EXPECT_THAT(refusal(longer), AllOf(HasSubstr("of 5000 characters"), HasSubstr("1 to 127")));
  wire::Hello huge = hello();
  huge.set_name(std::string(kMiB, 'n'));
  EXPECT_THAT(refusal(huge), Not(HasSubstr("nnn")));  // by gRPC: larger than metadata may be
  wire::Hello group = hello();
  group.set_group("job\r\n");
  EXPECT_THAT(refusal(group), HasSubstr("whose group is 'job\\x0d\\x0a'"));
  wire::Hello address = hello();
  address.set_address("\x1b]0;title\x07");
  EXPECT_THAT(refusal(address), HasSubstr("whose address is '\\x1b]0;title\\x07'"));
  EXPECT_TRUE(host_.accepted().empty());
}

TEST_F(GrpcUnknownProcessTest, OnlySoManyWaitForTheStartAndTheOthersAreToldToDialAgain) {
  GrpcTransportOptions options;
  options.most_waiting = 2;
  listen(options);
  const RawStream first(worker_->address(), {}, hello().SerializeAsString());
  std::vector<Future<void>> dials;
  for (int i = 0; i < 3; ++i) dials.push_back(dial());
  size_t refused = 0;
  while (refused == 0) {
    for (const Future<void>& one : dials) refused += one.done();
    std::this_thread::yield();
  }
  for (const Future<void>& one : dials) {
    if (!one.done()) continue;
    EXPECT_TRUE(absl::IsAborted(one.result().status())) << one.result().status();
  }
  start();
  EXPECT_TRUE(dial().result().ok());
}

TEST_F(GrpcUnknownProcessTest, WhoEndedBeforeTheStartKeepsNobodyOut) {
  GrpcTransportOptions options;
  options.most_waiting = 1;
  listen(options);
  {
    const RawStream one(worker_->address(), {}, hello().SerializeAsString());
    const RawStream other(worker_->address(), {}, hello().SerializeAsString());
    while (!one.ended() && !other.ended()) std::this_thread::yield();  // the other one waits
  }
  // Dials are refused as long as the worker has not noticed that both streams have closed. A dial
  // that waits while three later ones are refused is not refused itself.
  const auto end = std::chrono::steady_clock::now() + std::chrono::seconds(60);
  Future<void> waits = dial();
  for (int outlived = 0; outlived < 3;) {
    ASSERT_LT(std::chrono::steady_clock::now(), end) << "who ended still has the place";
    const Future<void> later = dial();
    while (!later.done() && !waits.done()) std::this_thread::yield();
    ++outlived;
    if (!waits.done()) continue;
    waits = later.done() ? dial() : later;
    outlived = 0;
  }
  start();
  EXPECT_TRUE(waits.result().ok()) << waits.result().status();
}

TEST_F(GrpcUnknownProcessTest, NobodyElseAddsAStreamToAMembersConnection) {
  listen();
  start();
  ASSERT_TRUE(dial().result().ok());
  wire::Hello kind = hello();
  kind.set_worker(WorkerId{1, 1}.bits());
  kind.set_connection(host_.number());
  kind.set_stream(2);
  const RawStream unknown(worker_->address(), {}, kind.SerializeAsString());
  EXPECT_THAT(unknown.wait().error_message(), HasSubstr("a further stream of no connection"));
}

}  // namespace
}  // namespace weft
