// Listening at the addresses of a host and at no others, and accepting.
#include "weft/sockets/tcp_port.h"

#include <arpa/inet.h>
#include <fcntl.h>
#include <netinet/in.h>
#include <string>
#include <sys/socket.h>

#include <gmock/gmock.h>
#include <gtest/gtest.h>

namespace weft {
namespace {

using ::testing::HasSubstr;

FileDescriptor connected_to(uint32_t host, uint16_t port) {
  FileDescriptor socket(::socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0));
  sockaddr_in address = {};
  address.sin_family = AF_INET;
  address.sin_addr.s_addr = htonl(host);
  address.sin_port = htons(port);
  if (::connect(socket.get(), reinterpret_cast<sockaddr*>(&address), sizeof(address)) != 0) {
    return FileDescriptor();
  }
  return socket;
}

TEST(TcpPortTest, ListensAtTheAddressesOfTheHostOnly) {
  const auto ports = listen_on_addresses_of("127.0.0.2", 0);
  ASSERT_TRUE(ports.ok()) << ports.status();
  ASSERT_EQ(ports->size(), 1u);
  const uint16_t port = (*ports)[0].port;
  EXPECT_TRUE(connected_to(0x7f000002, port).valid());
  EXPECT_FALSE(connected_to(0x7f000001, port).valid());
}

TEST(TcpPortTest, AllAddressesOfAHostHaveOnePort) {
  const auto ports = listen_on_addresses_of("localhost", 0);  // 127.0.0.1, and ::1 on most machines
  ASSERT_TRUE(ports.ok()) << ports.status();
  for (const ListeningPort& each : *ports) EXPECT_EQ(each.port, ports->front().port);
}

TEST(TcpPortTest, TakesIpv6InBracketsAndWithout) {
  for (const char* host : {"::1", "[::1]", "[::ffff:127.0.0.1]"}) {
    const auto ports = listen_on_addresses_of(host, 0);
    ASSERT_TRUE(ports.ok()) << ports.status();
    EXPECT_EQ(ports->size(), 1u);
  }
}

TEST(TcpPortTest, TheIpv6WildcardTakesIpv4AndTellsItsAddressAsSuch) {
  const auto ports = listen_on_addresses_of("[::]", 0);
  ASSERT_TRUE(ports.ok()) << ports.status();
  const FileDescriptor dialler = connected_to(0x7f000001, ports->front().port);
  ASSERT_TRUE(dialler.valid());
  const auto accepted = accept_tcp(ports->front().socket.get());
  ASSERT_TRUE(accepted.ok()) << accepted.status();
  EXPECT_EQ(accepted->address, "127.0.0.1");
}

TEST(TcpPortTest, ForOthersAHostThatIsNotHereMeansAllInterfaces) {
  const auto loopback = listen_for_others("127.0.0.2", 0);
  ASSERT_TRUE(loopback.ok()) << loopback.status();
  EXPECT_FALSE(connected_to(0x7f000001, loopback->front().port).valid());
  const auto everywhere = listen_for_others("192.0.2.1", 0);
  ASSERT_TRUE(everywhere.ok()) << everywhere.status();
  EXPECT_TRUE(connected_to(0x7f000001, everywhere->front().port).valid());
  EXPECT_TRUE(
      absl::IsAlreadyExists(listen_for_others("192.0.2.1", everywhere->front().port).status()));
  EXPECT_TRUE(absl::IsNotFound(listen_for_others("no-such-host.invalid", 0).status()));
}

TEST(TcpPortTest, ErrorsNameTheHostAndTheReason) {
  const auto taken = listen_on_addresses_of("127.0.0.1", 0);
  ASSERT_TRUE(taken.ok());
  const absl::Status in_use = listen_on_addresses_of("127.0.0.1", taken->front().port).status();
  EXPECT_TRUE(absl::IsAlreadyExists(in_use)) << in_use;
  const absl::Status foreign = listen_on_addresses_of("192.0.2.1", 0).status();
  EXPECT_TRUE(absl::IsUnavailable(foreign)) << foreign;
  EXPECT_THAT(std::string(foreign.message()), HasSubstr("192.0.2.1"));
  EXPECT_FALSE(listen_on_addresses_of("no-such-host.invalid", 0).ok());
}

TEST(TcpPortTest, AcceptsWhoWaitsAndSaysThatNobodyDoes) {
  const auto ports = listen_on_addresses_of("127.0.0.1", 0);
  ASSERT_TRUE(ports.ok());
  const int listening = ports->front().socket.get();
  EXPECT_TRUE(absl::IsDeadlineExceeded(accept_tcp(listening).status()));
  const FileDescriptor dialler = connected_to(0x7f000001, ports->front().port);
  const auto accepted = accept_tcp(listening);
  ASSERT_TRUE(accepted.ok()) << accepted.status();
  EXPECT_EQ(accepted->address, "127.0.0.1");
  sockaddr_in own = {};
  socklen_t size = sizeof(own);
  ASSERT_EQ(::getsockname(dialler.get(), reinterpret_cast<sockaddr*>(&own), &size), 0);
  EXPECT_EQ(accepted->port, ntohs(own.sin_port));
  EXPECT_NE(::fcntl(accepted->socket.get(), F_GETFL) & O_NONBLOCK, 0);
  EXPECT_NE(::fcntl(accepted->socket.get(), F_GETFD) & FD_CLOEXEC, 0);
}

}  // namespace
}  // namespace weft
