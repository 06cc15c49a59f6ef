// The proxy forwards everything unchanged until a fault is switched on, and then injects that
// fault.
#include "weft/tests/chaos/network/faulty_proxy.h"

#include <arpa/inet.h>
#include <cerrno>
#include <chrono>
#include <netinet/in.h>
#include <netinet/tcp.h>
#include <string>
#include <sys/socket.h>
#include <thread>
#include <unistd.h>

#include <gtest/gtest.h>

namespace weft::chaos {
namespace {

using std::chrono::milliseconds;

sockaddr_in loopback(uint16_t port) {
  sockaddr_in address{};
  address.sin_family = AF_INET;
  address.sin_port = htons(port);
  address.sin_addr.s_addr = htonl(INADDR_LOOPBACK);
  return address;
}

void send_at_once(int socket) {
  const int on = 1;
  EXPECT_EQ(::setsockopt(socket, IPPROTO_TCP, TCP_NODELAY, &on, sizeof(on)), 0);
}

// Sends back what it gets, one connection after the other.
class EchoServer {
 public:
  EchoServer() : door_(::socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0)) {
    sockaddr_in here = loopback(0);
    socklen_t size = sizeof(here);
    EXPECT_EQ(::bind(door_, reinterpret_cast<sockaddr*>(&here), size), 0);
    EXPECT_EQ(::listen(door_, 8), 0);
    ::getsockname(door_, reinterpret_cast<sockaddr*>(&here), &size);
    port_ = ntohs(here.sin_port);
    thread_ = std::thread([this] { serve(); });
  }
  ~EchoServer() {
    ::shutdown(door_, SHUT_RDWR);
    thread_.join();
    ::close(door_);
  }
  uint16_t port() const { return port_; }

 private:
  void serve() const {
    while (true) {
      const int client = ::accept(door_, nullptr, nullptr);
      if (client < 0) return;
      send_at_once(client);
      std::string bytes(4096, '\0');
      while (true) {
        const ssize_t got = ::recv(client, bytes.data(), bytes.size(), 0);
        if (got <= 0 || ::send(client, bytes.data(), got, MSG_NOSIGNAL) < 0) break;
      }
      ::close(client);
    }
  }

  const int door_;
  uint16_t port_ = 0;
  std::thread thread_;
};

class FaultyProxyTest : public ::testing::Test {
 protected:
  FaultyProxyTest() : proxy_({.target = [this] { return server_.port(); }, .seed = 7}) {}

  int dial() const {
    const std::string& address = proxy_.address();
    const auto port = static_cast<uint16_t>(std::stoul(address.substr(address.rfind(':') + 1)));
    const int socket = ::socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0);
    const sockaddr_in there = loopback(port);
    EXPECT_EQ(::connect(socket, reinterpret_cast<const sockaddr*>(&there), sizeof(there)), 0);
    send_at_once(socket);
    return socket;
  }
  // Returns the echo of `text`, or less of it if the connection closes.
  static std::string echo(int socket, const std::string& text) {
    if (::send(socket, text.data(), text.size(), MSG_NOSIGNAL) < 0) return "";
    std::string back(text.size(), '\0');
    size_t size = 0;
    while (size < back.size()) {
      const ssize_t got = ::recv(socket, back.data() + size, back.size() - size, 0);
      if (got <= 0) break;
      size += static_cast<size_t>(got);
    }
    back.resize(size);
    return back;
  }

  EchoServer server_;
  FaultyProxy proxy_;
};

TEST_F(FaultyProxyTest, PassesEverythingOnUnchanged) {
  const int socket = dial();
  std::string text(1 << 20, '\0');
  for (size_t i = 0; i < text.size(); ++i) text[i] = static_cast<char>(i * 31);
  EXPECT_EQ(echo(socket, "hello"), "hello");
  // In pieces that fit the buffers of both directions, because this side does not read while it
  // writes.
  for (size_t at = 0; at < text.size(); at += 16 << 10) {
    EXPECT_EQ(echo(socket, text.substr(at, 16 << 10)), text.substr(at, 16 << 10));
  }
  ::close(socket);
  EXPECT_EQ(proxy_.counts().connections, 1u);
  const FaultyProxy::Counts counts = proxy_.counts();
  EXPECT_EQ(counts.delayed + counts.flipped + counts.truncated + counts.hung, 0u);
}

TEST_F(FaultyProxyTest, HoldsPiecesBackUntilToldOtherwise) {
  const int socket = dial();
  proxy_.delay(milliseconds(40));
  for (int i = 0; i < 5; ++i) EXPECT_EQ(echo(socket, "late"), "late");
  EXPECT_EQ(proxy_.counts().delayed, 10u);  // there and back
  proxy_.delay(milliseconds(0));
  EXPECT_EQ(echo(socket, "in time"), "in time");
  EXPECT_EQ(proxy_.counts().delayed, 10u);
  ::close(socket);
}

TEST_F(FaultyProxyTest, FlipsOneBitOfAPiece) {
  const int socket = dial();
  proxy_.flip_one_in(1);
  const std::string sent(64, 'a');
  const std::string back = echo(socket, sent);
  ASSERT_EQ(back.size(), sent.size());
  int bits = 0;
  for (size_t i = 0; i < sent.size(); ++i) {
    bits += __builtin_popcount(static_cast<unsigned char>(sent[i] ^ back[i]));
  }
  // One bit in each direction, unless both flipped the same bit.
  EXPECT_TRUE(bits == 2 || bits == 0) << bits;
  EXPECT_EQ(proxy_.counts().flipped, 2u);
  ::close(socket);
}

TEST_F(FaultyProxyTest, CutsAPieceShortAndItsConnectionWithIt) {
  const int socket = dial();
  proxy_.truncate_one_in(1);
  const std::string sent(1000, 'a');
  EXPECT_LT(echo(socket, sent).size(), sent.size());
  EXPECT_EQ(proxy_.counts().truncated, 1u);
  proxy_.truncate_one_in(0);
  ::close(socket);
  const int another = dial();
  EXPECT_EQ(echo(another, "again"), "again");
  ::close(another);
}

TEST_F(FaultyProxyTest, HangsOneConnectionAndTellsNeitherEnd) {
  const int socket = dial();
  EXPECT_EQ(echo(socket, "moves"), "moves");
  proxy_.hang_at_one_in(1);
  EXPECT_EQ(::send(socket, "swallowed", 9, MSG_NOSIGNAL), 9);
  while (proxy_.counts().hung == 0) std::this_thread::yield();
  EXPECT_EQ(::send(socket, "this too", 8, MSG_NOSIGNAL), 8);
  const int another = dial();
  ::close(socket);  // the proxy does not tell the server, which still serves this connection
  EXPECT_EQ(::send(another, "waits", 5, MSG_NOSIGNAL), 5);
  char byte = 0;
  EXPECT_LT(::recv(another, &byte, 1, MSG_DONTWAIT), 0);
  EXPECT_EQ(errno, EAGAIN);
  ::close(another);
  EXPECT_EQ(proxy_.counts().hung, 1u);
}

TEST_F(FaultyProxyTest, ResetsWhoDialsWhileNobodyListensBehindIt) {
  const FaultyProxy closed({.target = [] { return uint16_t{1}; }});
  const std::string& address = closed.address();
  const int socket = ::socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0);
  const sockaddr_in there =
      loopback(static_cast<uint16_t>(std::stoul(address.substr(address.rfind(':') + 1))));
  (void)::connect(socket, reinterpret_cast<const sockaddr*>(&there), sizeof(there));
  char byte = 0;
  EXPECT_LE(::recv(socket, &byte, 1, 0), 0);
  ::close(socket);
}

}  // namespace
}  // namespace weft::chaos
