// TCP connections before gRPC gets them: which of them it gets, and which are given up.
#include "weft/links/grpc_sockets.h"

#include <memory>
#include <netinet/in.h>
#include <netinet/tcp.h>
#include <string>
#include <sys/socket.h>
#include <utility>
#include <vector>

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "weft/base/mutex.h"
#include "weft/tests/rpc/transport/raw_tcp.h"
#include "weft/tests/rpc/transport/transport_ends.h"
#include "weft/tests/support/eventually.h"

namespace weft {
namespace {

using std::chrono::milliseconds;
using std::chrono::seconds;
using testing::eventually;
using ::testing::HasSubstr;
using testing::kPatience;
using testing::RawTcp;

constexpr milliseconds kSoon = std::chrono::duration_cast<milliseconds>(kPatience);
constexpr milliseconds kShort(50);
constexpr const char* kFlood = "127.0.0.2";  // where the flood comes from

class GrpcSocketsTest : public ::testing::Test {
 protected:
  void listen(size_t most, const std::string& address = "127.0.0.1:0", bool tls = true) {
    sockets_ = std::make_unique<GrpcSockets>(clock_, address, most, tls);
    const absl::Status listening = sockets_->listen([this](FileDescriptor connection) {
      MutexLock lock(mutex_);
      given_.push_back(std::move(connection));
    });
    ASSERT_TRUE(listening.ok()) << listening;
  }
  // How many connections gRPC would have got.
  size_t given() {
    MutexLock lock(mutex_);
    return given_.size();
  }
  // Connects and sends a first byte, and waits until it is given.
  std::unique_ptr<RawTcp> speaking(const std::string& from = "") {
    const size_t before = given();
    auto connection = std::make_unique<RawTcp>(sockets_->address(), from);
    connection->send("x");
    EXPECT_TRUE(eventually([&] { return given() > before; }));
    return connection;
  }
  // Opens so many silent connections. The destructor of the result closes them.
  std::vector<std::unique_ptr<RawTcp>> silent(size_t count, const std::string& from = kFlood) {
    std::vector<std::unique_ptr<RawTcp>> result;
    for (size_t i = 0; i < count; ++i) {
      result.push_back(std::make_unique<RawTcp>(sockets_->address(), from));
      EXPECT_TRUE(result.back()->connected());
    }
    return result;
  }

  ManualClock clock_;
  Mutex mutex_;
  std::vector<FileDescriptor> given_ ABSL_GUARDED_BY(mutex_);
  std::unique_ptr<GrpcSockets> sockets_;
};

TEST_F(GrpcSocketsTest, WhoSaysNothingIsNotGivenAndMakesRoomForOthers) {
  listen(4);
  const auto flood = silent(6);
  EXPECT_TRUE(flood[0]->closed_within(kSoon));
  EXPECT_TRUE(flood[1]->closed_within(kSoon));
  EXPECT_FALSE(flood[5]->closed_within(kShort));
  EXPECT_EQ(given(), 0u);
}

TEST_F(GrpcSocketsTest, AFloodPushesOutItsOwnConnectionsOnly) {
  listen(4);
  const auto other = speaking();
  const auto flood = silent(50);
  EXPECT_TRUE(flood[45]->closed_within(kSoon));
  EXPECT_FALSE(other->closed_within(kShort));
  const auto later = speaking();
  EXPECT_FALSE(later->closed_within(kShort));
}

TEST_F(GrpcSocketsTest, WhoSpeaksAndProvesNothingIsShutDownToo) {
  listen(4);
  const auto first = speaking(kFlood);
  std::vector<std::unique_ptr<RawTcp>> others;
  for (int i = 0; i < 3; ++i) others.push_back(speaking(kFlood));
  RawTcp waiting(sockets_->address(), kFlood);
  EXPECT_FALSE(first->closed_within(kShort));  // handshakes have a second
  EXPECT_TRUE(eventually([&] {
    clock_.advance(milliseconds(100));
    return first->closed_within(milliseconds(1));
  }));
  char byte;
  MutexLock lock(mutex_);
  EXPECT_EQ(::recv(given_[0].get(), &byte, 1, 0), 1);  // gRPC still reads what came
  EXPECT_EQ(::recv(given_[0].get(), &byte, 1, 0), 0);
}

// Without TLS, a connection that ends before its hello looks like a death.
TEST_F(GrpcSocketsTest, WithoutTlsWhoSpeaksStaysAndOthersWait) {
  listen(2, "127.0.0.1:0", false);
  const auto first = speaking(), second = speaking();
  RawTcp third(sockets_->address());
  third.send("x");
  EXPECT_FALSE(third.closed_within(kShort));
  EXPECT_EQ(given(), 2u);
  EXPECT_FALSE(first->closed_within(kShort));
  first->close();
  EXPECT_TRUE(eventually([&] {
    clock_.advance(milliseconds(100));  // when it tries again
    return given() == 3;
  }));
  EXPECT_FALSE(second->closed_within(kShort));
}

TEST_F(GrpcSocketsTest, WhoHasProvenItselfStaysAndOnlyGrpcHoldsTheConnection) {
  listen(2);
  const auto member = speaking(kFlood);
  sockets_->mark_proven("ipv4:127.0.0.2:" + std::to_string(member->port()));
  const auto flood = silent(20);
  EXPECT_TRUE(flood[17]->closed_within(kSoon));
  EXPECT_FALSE(member->closed_within(kShort));
  {
    MutexLock lock(mutex_);
    given_[0].reset();
  }
  EXPECT_TRUE(member->closed_within(kSoon));
}

TEST_F(GrpcSocketsTest, FindsTheConnectionBehindGrpcsNamesOfIpv6Addresses) {
  listen(1, "[::1]:0");
  EXPECT_THAT(sockets_->address(), ::testing::StartsWith("[::1]:"));
  for (const std::string name : {"ipv6:%5B::1%5D:", "ipv6:[::1]:", "ipv6:%5B::1%252%5D:"}) {
    const auto member = speaking();
    sockets_->mark_proven(name + std::to_string(member->port()));
    const auto flood = silent(3, "");
    EXPECT_TRUE(flood[1]->closed_within(kSoon));
    EXPECT_FALSE(member->closed_within(kShort)) << name;
  }
}

TEST_F(GrpcSocketsTest, ConnectionsThatProveNothingInTimeAreShutDown) {
  listen(4);
  const auto early = silent(1);
  const auto speaker = speaking();
  clock_.advance(seconds(19));
  const auto late = speaking();
  EXPECT_FALSE(early[0]->closed_within(kShort));
  clock_.advance(seconds(1));
  EXPECT_TRUE(early[0]->closed_within(kSoon));
  EXPECT_TRUE(speaker->closed_within(kSoon));
  EXPECT_FALSE(late->closed_within(kShort));
  ASSERT_TRUE(eventually([&] { return clock_.next_timer() != kNever; }));  // for the late one
  clock_.advance(seconds(19));
  EXPECT_TRUE(late->closed_within(kSoon));
}

// gRPC would keep a write to a far end that hangs for ever, and it sets no options on sockets that
// it has not made.
TEST_F(GrpcSocketsTest, AcceptedSocketsGiveUpAfterHalfAMinuteAndDoNotDelay) {
  listen(4);
  const auto speaker = speaking();
  MutexLock lock(mutex_);
  for (const auto& [option, wanted] : {std::pair(TCP_USER_TIMEOUT, 30'000), {TCP_NODELAY, 1}}) {
    int value = 0;
    socklen_t size = sizeof(value);
    ASSERT_EQ(::getsockopt(given_[0].get(), IPPROTO_TCP, option, &value, &size), 0);
    EXPECT_EQ(value, wanted);
  }
}

TEST_F(GrpcSocketsTest, WhoHangsUpMakesRoom) {
  listen(3);
  auto first = silent(2);
  const auto kept = silent(1);
  first.clear();
  const auto speaker = speaking(kFlood);  // afterwards the ends of the first have been seen
  const auto more = silent(1);
  EXPECT_FALSE(kept[0]->closed_within(kShort));
}

TEST_F(GrpcSocketsTest, StopShutsDownWhatIsUnprovenAndListensNoMore) {
  listen(4);
  const auto waiting = silent(1);
  const auto speaker = speaking();
  const std::string address = sockets_->address();
  sockets_->stop();
  EXPECT_TRUE(waiting[0]->closed_within(kSoon));
  EXPECT_TRUE(speaker->closed_within(kSoon));
  EXPECT_FALSE(RawTcp(address).connected());
}

TEST_F(GrpcSocketsTest, OnlyThePublishedAddressIsBound) {
  listen(4);
  const std::string port = sockets_->address().substr(sockets_->address().rfind(':'));
  EXPECT_TRUE(RawTcp("127.0.0.1" + port).connected());
  EXPECT_FALSE(RawTcp("127.0.0.3" + port).connected());
}

TEST_F(GrpcSocketsTest, AddressesWhereItCannotListenAreNamed) {
  listen(4);
  const auto refused = [&](const std::string& address) {
    GrpcSockets second(clock_, address, 4, false);
    const absl::Status status = second.listen([](FileDescriptor) {});
    EXPECT_FALSE(status.ok());
    EXPECT_THAT(std::string(status.message()), HasSubstr(address.substr(0, address.rfind(':'))));
    return std::string(status.message());
  };
  EXPECT_THAT(refused(sockets_->address()), HasSubstr("the port is in use"));
  EXPECT_THAT(refused("192.0.2.1:0"), HasSubstr("this machine does not have the address"));
  EXPECT_THAT(refused("no-such-host.invalid:0"), HasSubstr("no-such-host.invalid"));
}

}  // namespace
}  // namespace weft
