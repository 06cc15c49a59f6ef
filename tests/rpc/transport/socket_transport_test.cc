// The further promises of a transport over sockets: dialling, addresses, and far ends that send
// nonsense.
#include <arpa/inet.h>
#include <memory>
#include <netinet/in.h>
#include <random>
#include <string>
#include <sys/socket.h>
#include <unistd.h>
#include <utility>
#include <vector>

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "weft/tests/rpc/transport/raw_stream.h"
#include "weft/tests/rpc/transport/raw_tcp.h"
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

class SocketTransportTest : public TransportConformanceTest {};
INSTANTIATE_TEST_SUITE_P(Grpc, SocketTransportTest,
                         ::testing::Values(TransportKind::kGrpc, TransportKind::kGrpcSpinning));

// A worker dies while this one is still joining. That its connection has closed must not be lost.
TEST_P(SocketTransportTest, WhoGaveUpBeforeTheStartIsNotLeftOpen) {
  auto a = started(1), b = listening(2);
  for (int i = 0; i < 10; ++i) {  // when the last has failed, the first are closed at b
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
    b.identity.role = "default";
    ASSERT_TRUE(b.transport->start(b.identity, &b.sink).ok());
    const auto connection = connect(*a, b);
    ASSERT_TRUE(connection.ok());
    for (size_t i = 1; i <= 100; ++i) {
      EXPECT_TRUE((*connection)->send(numbered_frame(i)));
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

// Others on this member's host open far more connections than this end keeps.
TEST_P(SocketTransportTest, AFloodOfConnectionsHarmsNoMemberAndKeepsNobodyOut) {
  for (const std::string host : {"127.0.0.1", "[::1]"}) {
    for (const bool tls : {false, true}) {
      GrpcTransportOptions options;
      options.listen_address = host + ":0";
      options.most_unproven = 8;
      End a, b;
      for (End* end : {&a, &b}) {
        end->identity = {"group", end == &a ? "w1" : "w2", {end == &a ? 1u : 2u, 1}};
        end->identity.role = "default";
        if (tls) options.tls = testing::credentials_of(end->identity.name);
        end->transport = std::make_unique<GrpcTransport>(clock_, options);
        ASSERT_TRUE(end->transport->start(end->identity, &end->sink).ok());
      }
      const auto connection = connect(a, b);
      ASSERT_TRUE(connection.ok()) << connection.status();
      const FramePtr large = numbered_frame(1, 100'000);
      ASSERT_TRUE(testing::eventually(
          [&] { return (*connection)->streams_of(*large).size() > 1; }));  // all are open
      std::vector<testing::RawTcp> flood;
      // Without TLS, silent connections are given up after 1 s.
      for (int i = 0; i < (tls ? 40 : 10); ++i) {
        flood.emplace_back(b.transport->address());
        if (tls && i % 2 == 0) flood.back().send("PRI * HTTP/2.0");
      }
      for (int i = 0; i < (tls ? 30 : 2); ++i) {
        EXPECT_TRUE(flood[static_cast<size_t>(i)].closed_within(
            std::chrono::duration_cast<std::chrono::milliseconds>(kPatience)))
            << i;
      }
      EXPECT_TRUE((*connection)->send(numbered_frame(1)));
      EXPECT_TRUE(b.sink.wait_for_frames(1));
      End c;
      c.identity = {"group", "w3", {3, 1}};
      c.identity.role = "default";
      if (tls) options.tls = testing::credentials_of("w3");
      c.transport = std::make_unique<GrpcTransport>(clock_, options);
      ASSERT_TRUE(c.transport->start(c.identity, &c.sink).ok());
      EXPECT_TRUE(connect(c, b).ok());
      EXPECT_TRUE((*connection)->send(numbered_frame(2)));
      EXPECT_TRUE(b.sink.wait_for_frames(2));
    }
  }
}

// An error of the resolver is no sign that the far end is dead.
TEST_P(SocketTransportTest, DiallingAHostWithoutAnAddressIsNoAnswer) {
  auto a = started(1);
  const Future<ConnectionPtr> future =
      dial(*a, "weft.invalid:1", {"group", "w2", {2, 1}}, std::chrono::seconds(3));
  ASSERT_TRUE(future.wait_for(seconds(20)));
  EXPECT_EQ(future.result().status().code(), absl::StatusCode::kDeadlineExceeded)
      << future.result().status();
}

// gRPC would take them for URIs.
TEST_P(SocketTransportTest, OnlyHostAndPortAreDialled) {
  auto a = started(1);
  for (const char* address :
       {"unix-abstract:x", "dns://127.0.0.1:53/x", "xds:///x", "ipv4:127.0.0.1", "localhost", ":1",
        "a b:1", "localhost:x", "localhost:70000", ""}) {
    const absl::Status status = dial(*a, address, {"group", "w2", {2, 1}}).result().status();
    EXPECT_EQ(status.code(), absl::StatusCode::kInvalidArgument) << status;
    EXPECT_THAT(std::string(status.message()), HasSubstr(std::string("'") + address + "'"));
  }
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
  EXPECT_TRUE((*before)->send(numbered_frame(1)));
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
      const testing::RawStream unknown(b->transport->address(), {text}, hello);
      EXPECT_EQ(unknown.wait().error_code(), grpc::StatusCode::FAILED_PRECONDITION);
    }
  }
  EXPECT_EQ(b->sink.accepted().size(), 1u);
  EXPECT_TRUE((*before)->send(numbered_frame(1)));
  ASSERT_TRUE(b->sink.wait_for_frames(1));
}

}  // namespace
}  // namespace weft
