// A TCP connection of a program that is no worker, from an address of this machine's choice.
//
// Thread safety: none. It is for one thread of a test.
#pragma once

#include <arpa/inet.h>
#include <chrono>
#include <cstdint>
#include <netdb.h>
#include <netinet/in.h>
#include <poll.h>
#include <string>
#include <sys/socket.h>

#include <gtest/gtest.h>

#include "weft/sockets/file_descriptor.h"

namespace weft::testing {

class RawTcp {
 public:
  // `address` is HOST:PORT. `from`: an address of the loopback network, such as 127.0.0.2.
  explicit RawTcp(const std::string& address, const std::string& from = "") {
    const size_t colon = address.rfind(':');
    std::string host = address.substr(0, colon);
    if (host.starts_with("[")) host = host.substr(1, host.size() - 2);
    addrinfo* found = nullptr;
    EXPECT_EQ(::getaddrinfo(host.c_str(), address.substr(colon + 1).c_str(), nullptr, &found), 0);
    socket_ = FileDescriptor(::socket(found->ai_family, SOCK_STREAM | SOCK_CLOEXEC, 0));
    if (!from.empty()) {
      sockaddr_in own = {};
      own.sin_family = AF_INET;
      EXPECT_EQ(::inet_pton(AF_INET, from.c_str(), &own.sin_addr), 1);
      EXPECT_EQ(::bind(socket_.get(), reinterpret_cast<sockaddr*>(&own), sizeof(own)), 0);
    }
    connected_ = ::connect(socket_.get(), found->ai_addr, found->ai_addrlen) == 0;
    ::freeaddrinfo(found);
  }

  bool connected() const { return connected_; }
  void send(const std::string& bytes) {
    EXPECT_EQ(::send(socket_.get(), bytes.data(), bytes.size(), MSG_NOSIGNAL),
              static_cast<ssize_t>(bytes.size()));
  }
  void close() { socket_.reset(); }
  // Whether the far end closes the connection within this time. This drops what it sends.
  bool closed_within(std::chrono::milliseconds patience) {
    const auto deadline = std::chrono::steady_clock::now() + patience;
    while (true) {
      const auto left = std::chrono::duration_cast<std::chrono::milliseconds>(
          deadline - std::chrono::steady_clock::now());
      pollfd one = {socket_.get(), POLLIN, 0};
      if (left.count() < 0 || ::poll(&one, 1, static_cast<int>(left.count())) == 0) return false;
      char bytes[4096];
      if (::recv(socket_.get(), bytes, sizeof(bytes), 0) <= 0) return true;
    }
  }
  // As the kernel of the far end sees it.
  uint16_t port() const {
    sockaddr_storage own = {};
    socklen_t size = sizeof(own);
    EXPECT_EQ(::getsockname(socket_.get(), reinterpret_cast<sockaddr*>(&own), &size), 0);
    return ntohs(own.ss_family == AF_INET6 ? reinterpret_cast<sockaddr_in6*>(&own)->sin6_port
                                           : reinterpret_cast<sockaddr_in*>(&own)->sin_port);
  }

 private:
  FileDescriptor socket_;
  bool connected_ = false;
};

}  // namespace weft::testing
