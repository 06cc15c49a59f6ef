#include "weft/sockets/local_socket.h"

#include <chrono>
#include <fcntl.h>
#include <string>
#include <sys/socket.h>
#include <sys/un.h>
#include <sys/wait.h>
#include <unistd.h>
#include <utility>

#include <gtest/gtest.h>

#include "weft/shm/sealed_memory.h"

namespace weft {
namespace {

using std::chrono::milliseconds;
using std::chrono::seconds;

LocalSocket::TimePoint in(std::chrono::milliseconds time) {
  return std::chrono::steady_clock::now() + time;
}

struct Pair {
  LocalSocket client;
  LocalSocket server;
};

Pair connected() {
  absl::StatusOr<LocalListener> listener = LocalListener::create();
  EXPECT_TRUE(listener.ok()) << listener.status();
  absl::StatusOr<LocalSocket> client = LocalSocket::connect(listener->name(), in(seconds(30)));
  EXPECT_TRUE(client.ok()) << client.status();
  absl::StatusOr<LocalSocket> server = listener->accept(in(seconds(30)));
  EXPECT_TRUE(server.ok()) << server.status();
  return {*std::move(client), *std::move(server)};
}

TEST(LocalSocketTest, CarriesBytesBothWays) {
  Pair pair = connected();
  ASSERT_TRUE(pair.client.send("hello", {}, in(seconds(30))).ok());
  ASSERT_TRUE(pair.client.send("again", {}, in(seconds(30))).ok());
  EXPECT_EQ(pair.server.receive(in(seconds(30)))->bytes, "hello");
  EXPECT_EQ(pair.server.receive(in(seconds(30)))->bytes, "again");
  ASSERT_TRUE(
      pair.server.send(std::string(LocalSocket::kMostBytes, 'x'), {}, in(seconds(30))).ok());
  EXPECT_EQ(pair.client.receive(in(seconds(30)))->bytes.size(), LocalSocket::kMostBytes);
  EXPECT_EQ(pair.server.peer_process(), ::getpid());
}

TEST(LocalSocketTest, CarriesMemory) {
  Pair pair = connected();
  SealedMemory memory = *SealedMemory::create("weft-test", 4096);
  const int descriptors[] = {memory.descriptor()};
  ASSERT_TRUE(pair.client.send("memory", descriptors, in(seconds(30))).ok());
  LocalSocket::Message message = *pair.server.receive(in(seconds(30)));
  ASSERT_EQ(message.descriptors.size(), 1u);
  EXPECT_EQ(::fcntl(message.descriptors[0].get(), F_GETFD), FD_CLOEXEC);
  SealedMemory seen = *SealedMemory::adopt(std::move(message.descriptors[0]), memory.size());
  memory.data()[5] = std::byte{5};
  EXPECT_EQ(seen.data()[5], std::byte{5});
}

TEST(LocalSocketTest, DoesNotWaitBeyondTheDeadline) {
  Pair pair = connected();
  EXPECT_TRUE(absl::IsDeadlineExceeded(pair.client.receive(in(milliseconds(5))).status()));
  absl::StatusOr<LocalListener> listener = LocalListener::create();
  ASSERT_TRUE(listener.ok()) << listener.status();
  EXPECT_TRUE(absl::IsDeadlineExceeded(listener->accept(in(milliseconds(5))).status()));
  absl::Status full;
  for (int i = 0; i < 100'000 && full.ok(); ++i)
    full = pair.client.send("x", {}, in(milliseconds(1)));
  EXPECT_TRUE(absl::IsDeadlineExceeded(full)) << full;
}

TEST(LocalSocketTest, SeesTheFarEndClose) {
  Pair pair = connected();
  EXPECT_FALSE(pair.client.closed_by_peer());
  ASSERT_TRUE(pair.server.send("last words", {}, in(seconds(30))).ok());
  EXPECT_FALSE(pair.client.closed_by_peer()) << "a message is no end";
  { const LocalSocket gone = std::move(pair.server); }
  EXPECT_TRUE(pair.client.closed_by_peer());
  EXPECT_EQ(pair.client.receive(in(seconds(30)))->bytes, "last words");
  EXPECT_TRUE(absl::IsUnavailable(pair.client.receive(in(seconds(30))).status()));
  EXPECT_TRUE(absl::IsUnavailable(pair.client.send("x", {}, in(seconds(30)))));
}

TEST(LocalSocketTest, SeesTheFarEndDie) {
  absl::StatusOr<LocalListener> listener = LocalListener::create();
  ASSERT_TRUE(listener.ok()) << listener.status();
  // The child only holds its end of the socket, which is safe after a fork.
  const pid_t child = ::fork();
  if (child == 0) {
    absl::StatusOr<LocalSocket> held = LocalSocket::connect(listener->name(), in(seconds(30)));
    while (true) ::pause();
  }
  absl::StatusOr<LocalSocket> server = listener->accept(in(seconds(30)));
  ASSERT_TRUE(server.ok()) << server.status();
  EXPECT_EQ(server->peer_process(), child);
  EXPECT_FALSE(server->closed_by_peer());
  ::kill(child, SIGKILL);
  ::waitpid(child, nullptr, 0);
  EXPECT_TRUE(server->closed_by_peer());
  EXPECT_FALSE(server->receive(in(seconds(30))).ok());
}

TEST(LocalSocketTest, EndsBothDirectionsAtOnce) {
  Pair pair = connected();
  pair.client.shut_down();
  EXPECT_TRUE(pair.server.closed_by_peer());
  EXPECT_TRUE(pair.client.closed_by_peer());
  EXPECT_TRUE(absl::IsUnavailable(pair.server.receive(in(seconds(30))).status()));
}

TEST(LocalSocketTest, RefusesWhatDoesNotFit) {
  Pair pair = connected();
  const std::string large(LocalSocket::kMostBytes + 1, 'x');
  EXPECT_TRUE(absl::IsInvalidArgument(pair.client.send(large, {}, in(seconds(30)))));
  EXPECT_TRUE(absl::IsInvalidArgument(pair.client.send("", {}, in(seconds(30)))));
  const std::vector<int> many(LocalSocket::kMostDescriptors + 1, 0);
  EXPECT_TRUE(absl::IsInvalidArgument(pair.client.send("x", many, in(seconds(30)))));
  ASSERT_EQ(::send(pair.client.descriptor(), large.data(), large.size(), 0),
            static_cast<ssize_t>(large.size()));
  EXPECT_TRUE(absl::IsInvalidArgument(pair.server.receive(in(seconds(30))).status()));
}

TEST(LocalSocketTest, SaysWhereNobodyListens) {
  const std::string gone = LocalListener::create()->name();
  const absl::Status status = LocalSocket::connect(gone, in(seconds(30))).status();
  EXPECT_TRUE(absl::IsUnavailable(status)) << status;
  EXPECT_NE(status.message().find(gone), std::string_view::npos) << status;
  EXPECT_TRUE(absl::IsInvalidArgument(LocalSocket::connect("", in(seconds(30))).status()));
  EXPECT_TRUE(absl::IsInvalidArgument(
      LocalSocket::connect(std::string(200, 'x'), in(seconds(30))).status()));
}

TEST(LocalSocketTest, AChosenNameBelongsToOneListener) {
  const std::string name = "weft-test-" + std::to_string(::getpid());
  auto first = LocalListener::create_named(name, LocalSocket::Kind::kStream);
  ASSERT_TRUE(first.ok()) << first.status();
  EXPECT_TRUE(LocalSocket::connect(name, in(seconds(30)), LocalSocket::Kind::kStream).ok());
  const absl::Status taken = LocalListener::create_named(name, LocalSocket::Kind::kStream).status();
  EXPECT_TRUE(absl::IsAlreadyExists(taken)) << taken;
  for (const std::string& bad : {std::string("other"), std::string("weft-"), std::string("weft-A"),
                                 std::string("weft-a/b"), "weft-" + std::string(65, 'a')}) {
    EXPECT_TRUE(absl::IsInvalidArgument(
        LocalListener::create_named(bad, LocalSocket::Kind::kStream).status()))
        << bad;
  }
}

TEST(LocalSocketTest, HasANameOfItsOwn) {
  EXPECT_NE(LocalListener::create()->name(), LocalListener::create()->name());
}

TEST(LocalSocketTest, WaitsForRoomInAFullQueueOfAListener) {
  absl::StatusOr<LocalListener> listener = LocalListener::create();
  ASSERT_TRUE(listener.ok()) << listener.status();
  std::vector<LocalSocket> waiting;
  absl::Status full;
  while (full.ok() && waiting.size() < 20'000) {
    absl::StatusOr<LocalSocket> one = LocalSocket::connect(listener->name(), in(milliseconds(5)));
    full = one.status();
    if (one.ok()) waiting.push_back(*std::move(one));
  }
  EXPECT_TRUE(absl::IsDeadlineExceeded(full) || absl::IsResourceExhausted(full)) << full;
  ASSERT_TRUE(listener->accept(in(seconds(30))).ok());
}

}  // namespace
}  // namespace weft
