// gRPC over unix sockets: who may connect, what stays open, and far ends that take nothing.
#include <atomic>
#include <cerrno>
#include <csignal>
#include <fcntl.h>
#include <memory>
#include <poll.h>
#include <string>
#include <sys/socket.h>
#include <sys/wait.h>
#include <thread>
#include <unistd.h>
#include <utility>
#include <vector>

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "weft/links/grpc_sockets.h"
#include "weft/tests/rpc/transport/transport_ends.h"
#include "weft/tests/support/eventually.h"

namespace weft {
namespace {

using testing::End;
using testing::eventually;
using ::testing::HasSubstr;
using testing::kPatience;
using testing::numbered_frame;

size_t open_descriptors() {
  size_t count = 0;
  for (int i = 0; i < 1024; ++i) count += ::fcntl(i, F_GETFD) >= 0;
  return count;
}

// Passes bytes between diallers and a listener until it is frozen. Then it reads nothing more, as a
// process that is stopped.
class FreezingProxy {
 public:
  explicit FreezingProxy(std::string target) : target_(std::move(target)) {}
  ~FreezingProxy() {
    stopping_.store(true);
    thread_.join();
  }
  std::string address() const { return "unix:" + listener_.name(); }
  void freeze() { frozen_.store(true); }
  // After freeze(): sends nothing more to the diallers either.
  void half_close() { half_closed_.store(true); }
  size_t connections() const { return connections_.load(); }

 private:
  void run() {
    std::vector<std::pair<FileDescriptor, FileDescriptor>> pairs;
    while (!stopping_.load()) {
      std::vector<pollfd> polled = {{listener_.descriptor(), POLLIN, 0}};
      for (const auto& [near, far] : pairs) {
        polled.push_back({near.get(), POLLIN, 0});
        polled.push_back({far.get(), POLLIN, 0});
      }
      if (frozen_.load()) polled.clear();
      if (half_closed_.exchange(false)) {
        for (const auto& [near, far] : pairs) ::shutdown(near.get(), SHUT_WR);
      }
      if (::poll(polled.data(), polled.size(), 1) <= 0) continue;
      for (size_t i = 1; i < polled.size(); ++i) {
        const auto& pair = pairs[(i - 1) / 2];
        if (polled[i].revents != 0) pass(polled[i].fd, i % 2 == 1 ? pair.second : pair.first);
      }
      if (polled[0].revents == 0) continue;
      auto near = listener_.accept(std::chrono::steady_clock::now() + kPatience);
      auto far = LocalSocket::connect(target_, std::chrono::steady_clock::now() + kPatience,
                                      LocalSocket::Kind::kStream);
      ASSERT_TRUE(near.ok() && far.ok());
      pairs.emplace_back(near->take_descriptor(), far->take_descriptor());
      ++connections_;
    }
  }
  static void pass(int from, const FileDescriptor& to) {
    char bytes[65536];
    const ssize_t got = ::recv(from, bytes, sizeof(bytes), MSG_DONTWAIT);
    if (got <= 0) {
      if (got == 0 || errno != EAGAIN) ::shutdown(to.get(), SHUT_WR);
      return;
    }
    for (ssize_t sent = 0; sent < got;) {
      const ssize_t more =
          ::send(to.get(), bytes + sent, static_cast<size_t>(got - sent), MSG_NOSIGNAL);
      if (more > 0) sent += more;
      if (more < 0 && errno != EAGAIN) return;
    }
  }

  const std::string target_;
  LocalListener listener_ = *LocalListener::create(LocalSocket::Kind::kStream);
  std::atomic<bool> frozen_{false}, half_closed_{false}, stopping_{false};
  std::atomic<size_t> connections_{0};
  std::thread thread_{[this] { run(); }};
};

class LocalGrpcTest : public ::testing::Test {
 protected:
  std::unique_ptr<End> started(uint32_t index, const std::string& listen_address = "unix:") {
    auto end = std::make_unique<End>();
    GrpcTransportOptions options;
    options.listen_address = listen_address;
    options.grace = std::chrono::milliseconds(100);
    end->transport = std::make_unique<GrpcTransport>(clock_, options);
    end->identity = {"group", "w" + std::to_string(index), {index, 1}};
    EXPECT_TRUE(end->transport->start(end->identity, &end->sink).ok());
    return end;
  }
  absl::StatusOr<ConnectionPtr> connect(End& from, const std::string& address,
                                        const PeerIdentity& expected) {
    return testing::dial(from, address, expected).result();
  }

  SystemClock clock_;
};

// TCP gives such a connection up after 30 s, unix sockets never do.
TEST_F(LocalGrpcTest, StopNeedsNothingOfAFarEndThatTakesNothing) {
  auto a = started(1), b = started(2);
  FreezingProxy proxy(b->transport->address().substr(sizeof("unix:") - 1));
  const auto connection = connect(*a, proxy.address(), b->identity);
  ASSERT_TRUE(connection.ok()) << connection.status();
  ASSERT_TRUE(eventually([&] { return proxy.connections() == 2; }));  // the bulk stream
  ASSERT_TRUE((*connection)->send(numbered_frame(1, 1 << 20)));
  ASSERT_TRUE(b->sink.wait_for_frames(1));
  proxy.freeze();
  for (uint64_t i = 2; i < 66; ++i) {
    ASSERT_TRUE((*connection)->send(numbered_frame(i, 1 << 20)));
    ASSERT_TRUE((*connection)->send(numbered_frame(i, 100)));
  }
  a->transport->stop();
  b->transport->stop();
}

// It also closes its own direction, so the end of the connection is seen while a write waits.
TEST_F(LocalGrpcTest, AHalfClosedConnectionEndsAlthoughAWriteWaits) {
  auto a = started(1), b = started(2);
  FreezingProxy proxy(b->transport->address().substr(sizeof("unix:") - 1));
  const auto connection = connect(*a, proxy.address(), b->identity);
  ASSERT_TRUE(connection.ok()) << connection.status();
  ASSERT_TRUE(eventually([&] { return proxy.connections() == 2; }));
  proxy.freeze();
  for (uint64_t i = 1; i < 65; ++i) {
    ASSERT_TRUE((*connection)->send(numbered_frame(i, 1 << 20)));
    ASSERT_TRUE((*connection)->send(numbered_frame(i, 100)));
  }
  proxy.half_close();
  EXPECT_TRUE(a->sink.wait_for_closed(1));
}

TEST_F(LocalGrpcTest, AClosedConnectionLeavesNoDescriptorBehind) {
  auto a = started(1), b = started(2);
  size_t closed = 0, before = 0;
  for (int i = 0; i < 20; ++i) {
    if (i == 1) before = open_descriptors();  // gRPC has opened its own
    const auto connection = connect(*a, b->transport->address(), b->identity);
    ASSERT_TRUE(connection.ok()) << connection.status();
    (*connection)->close();
    ASSERT_TRUE(a->sink.wait_for_closed(++closed));
  }
  // Each connection has had at least four.
  EXPECT_TRUE(eventually([&] { return open_descriptors() < before + 20; }))
      << open_descriptors() << " after " << before;
}

TEST_F(LocalGrpcTest, AddressesOfTheOtherKindAreErrorsThatSayWhy) {
  auto local = started(1), across = started(2, "127.0.0.1:0");
  for (const auto& [from, to] :
       {std::pair(local.get(), across.get()), std::pair(across.get(), local.get())}) {
    const absl::Status status = connect(*from, to->transport->address(), to->identity).status();
    EXPECT_EQ(status.code(), absl::StatusCode::kInvalidArgument) << status;
    EXPECT_THAT(std::string(status.message()), HasSubstr("WEFT_SECURITY"));
  }
}

TEST_F(LocalGrpcTest, WhatIsNoHttpHarmsNobody) {
  auto a = started(1), b = started(2);
  for (int i = 0; i < 20; ++i) {
    auto unknown = LocalSocket::connect(b->transport->address().substr(sizeof("unix:") - 1),
                                        std::chrono::steady_clock::now() + kPatience,
                                        LocalSocket::Kind::kStream);
    ASSERT_TRUE(unknown.ok()) << unknown.status();
    (void)!::send(unknown->descriptor(), "nonsense", 8, MSG_NOSIGNAL);
  }
  EXPECT_TRUE(connect(*a, b->transport->address(), b->identity).ok());
}

TEST_F(LocalGrpcTest, AnotherUsersProcessIsNotAccepted) {
  if (::geteuid() != 0) GTEST_SKIP() << "only root can be another user";
  auto b = started(2);
  const std::string name = b->transport->address().substr(sizeof("unix:") - 1);
  const pid_t child = ::fork();
  if (child == 0) {
    if (::setuid(12345) != 0) ::_exit(2);
    const auto until = std::chrono::steady_clock::now() + kPatience;
    auto socket = LocalSocket::connect(name, until, LocalSocket::Kind::kStream);
    if (!socket.ok()) ::_exit(3);
    // The listener closes it, and answers no HTTP/2 preface.
    char byte;
    pollfd one = {socket->descriptor(), POLLIN, 0};
    if (::poll(&one, 1, 60'000) != 1) ::_exit(4);
    ::_exit(::recv(socket->descriptor(), &byte, 1, 0) == 0 ? 0 : 5);
  }
  int status = 0;
  ASSERT_EQ(::waitpid(child, &status, 0), child);
  EXPECT_TRUE(WIFEXITED(status));
  EXPECT_EQ(WEXITSTATUS(status), 0);
}

TEST_F(LocalGrpcTest, ADiallerRefusesAnotherUsersListener) {
  if (::geteuid() != 0) GTEST_SKIP() << "only root can be another user";
  int ready[2];
  ASSERT_EQ(::pipe(ready), 0);
  const pid_t child = ::fork();
  if (child == 0) {
    if (::setuid(12345) != 0) ::_exit(2);
    auto listener = LocalListener::create(LocalSocket::Kind::kStream);
    if (!listener.ok()) ::_exit(3);
    (void)!::write(ready[1], listener->name().data(), listener->name().size());
    for (;;) ::pause();
  }
  char name[200];
  const ssize_t size = ::read(ready[0], name, sizeof(name));
  ASSERT_GT(size, 0);
  auto a = started(1);
  const absl::Status status =
      connect(*a, "unix:" + std::string(name, static_cast<size_t>(size)), {"group", "w2", {2, 1}})
          .status();
  EXPECT_EQ(status.code(), absl::StatusCode::kFailedPrecondition) << status;
  EXPECT_THAT(std::string(status.message()), HasSubstr("12345"));
  ::kill(child, SIGKILL);
  ::waitpid(child, nullptr, 0);
}

TEST_F(LocalGrpcTest, OnlyNamesOfListenersAreDialled) {
  auto a = started(1);
  for (const char* address :
       {"unix:", "unix:/run/x.sock", "unix:another-daemon", "unix:weft-X/y"}) {
    EXPECT_EQ(connect(*a, address, {"group", "w2", {2, 1}}).status().code(),
              absl::StatusCode::kInvalidArgument)
        << address;
  }
}

TEST(LocalGrpcSocketsTest, DiallingAfterTheStopIsUnavailable) {
  SystemClock clock;
  GrpcSockets here(clock, "unix:", 1, false), there(clock, "unix:", 1, false);
  ASSERT_TRUE(here.listen([](FileDescriptor) {}).ok());
  ASSERT_TRUE(there.listen([](FileDescriptor) {}).ok());
  EXPECT_TRUE(here.connect(there.address()).ok());
  here.stop();
  EXPECT_EQ(here.connect(there.address()).status().code(), absl::StatusCode::kUnavailable);
  EXPECT_EQ(there.connect(here.address()).status().code(), absl::StatusCode::kUnavailable);
}

}  // namespace
}  // namespace weft
