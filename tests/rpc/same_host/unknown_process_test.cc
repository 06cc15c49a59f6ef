// Processes that connect to a worker's listener and do not keep to the protocol.
#include <cstddef>
#include <memory>
#include <string>
#include <sys/mman.h>
#include <sys/resource.h>
#include <sys/socket.h>
#include <sys/un.h>
#include <unistd.h>
#include <vector>

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "weft/tests/rpc/same_host/process_state.h"
#include "weft/tests/rpc/same_host/raw_peer.h"
#include "weft/tests/support/eventually.h"
#include "weft/tests/support/held_timers.h"

namespace weft {
namespace {

using rpc_internal::Introduction;
using rpc_internal::PairMemory;
using rpc_internal::WakePage;
using testing::connect_ends;
using testing::End;
using testing::eventually;
using testing::HeldTimers;
using testing::honest_hello;
using testing::open_descriptors;
using testing::raw_connect;
using testing::same_host_end;
using testing::soon;
using testing::started_end;

class UnknownProcessTest : public ::testing::Test {
 protected:
  // Says `hello` with these descriptors. Returns what comes back.
  absl::Status say(const std::string& hello, const std::vector<int>& descriptors) {
    LocalSocket socket = raw_connect(*b_);
    EXPECT_TRUE(socket.send(hello, descriptors, soon()).ok());
    return socket.receive(soon()).status();
  }
  void expect_closed(const std::string& hello, const std::vector<int>& descriptors) {
    const absl::Status status = say(hello, descriptors);
    EXPECT_TRUE(absl::IsUnavailable(status)) << status;
  }
  std::string hello(uint32_t ring_bytes = 4096) {
    return encode_introduction(honest_hello(*b_, ring_bytes));
  }

  SystemClock clock_;
  std::unique_ptr<End> a_ = started_end(clock_, 1);
  std::unique_ptr<End> b_ = started_end(clock_, 2, {.most_waiting = 4});
  PairMemory memory_ = PairMemory::create(4096).value();
  const std::shared_ptr<WakePage> page_ = WakePage::create().value();
};

TEST_F(UnknownProcessTest, AnHonestHelloIsAnswered) {
  EXPECT_TRUE(say(hello(), {memory_.descriptor(), page_->descriptor()}).ok());
}

TEST_F(UnknownProcessTest, RubbishIsClosedWithoutAnAnswer) {
  expect_closed("x", {});
  expect_closed(std::string(10000, 'x'), {memory_.descriptor(), page_->descriptor()});
  std::string layout = hello();
  layout[0] ^= 1;
  expect_closed(layout, {memory_.descriptor(), page_->descriptor()});
  expect_closed(hello(0), {memory_.descriptor(), page_->descriptor()});
  expect_closed(hello(1 << 30), {memory_.descriptor(), page_->descriptor()});
  EXPECT_TRUE(b_->sink.accepted().empty());
  EXPECT_TRUE(connect_ends(*a_, *b_).ok());
}

TEST_F(UnknownProcessTest, WrongDescriptorsAreClosedWithoutAConnectionAndNoneStaysOpen) {
  const int memory = memory_.descriptor(), page = page_->descriptor();
  int pipe[2];
  ASSERT_EQ(::pipe(pipe), 0);
  const FileDescriptor read_end(pipe[0]), write_end(pipe[1]);
  const FileDescriptor unsealed(::memfd_create("unsealed", MFD_CLOEXEC));
  ASSERT_EQ(::ftruncate(unsealed.get(), static_cast<off_t>(1) << 20), 0);
  const SealedMemory tiny = SealedMemory::create("tiny", 4096).value();
  const size_t before = open_descriptors();
  const std::vector<std::vector<int>> wrong = {{},
                                               {memory},
                                               {memory, page, page},
                                               {page, memory},
                                               {memory, memory},
                                               {tiny.descriptor(), page},
                                               {unsealed.get(), page},
                                               {memory, unsealed.get()},
                                               {read_end.get(), page},
                                               {memory, write_end.get()}};
  for (const std::vector<int>& descriptors : wrong) expect_closed(hello(), descriptors);
  expect_closed(hello(8192), {memory, page});  // the memory has another size
  EXPECT_TRUE(eventually([&] { return open_descriptors() == before; }));
  EXPECT_TRUE(connect_ends(*a_, *b_).ok());
}

TEST_F(UnknownProcessTest, SilentProcessesMakeRoomForOthers) {
  std::vector<LocalSocket> silent;
  for (int i = 0; i < 10; ++i) silent.push_back(raw_connect(*b_));
  EXPECT_TRUE(connect_ends(*a_, *b_).ok());
  EXPECT_TRUE(eventually([&] {
    size_t closed = 0;
    for (const LocalSocket& socket : silent) closed += socket.closed_by_peer() ? 1 : 0;
    return closed >= 6;
  }));
  EXPECT_FALSE(silent.back().closed_by_peer());
}

TEST_F(UnknownProcessTest, OnlySoManyDiallersWaitForTheStartAndWhoGivesUpMakesRoom) {
  auto late = same_host_end(clock_, 3, {.most_waiting = 3});
  const auto wait_there = [&](bool expect_room = true) {
    LocalSocket socket = raw_connect(*late);
    const int descriptors[] = {memory_.descriptor(), page_->descriptor()};
    const absl::Status sent =
        socket.send(encode_introduction(honest_hello(*late)), descriptors, soon());
    EXPECT_TRUE(sent.ok() || !expect_room) << sent;  // it may be refused before this
    return socket;
  };
  const size_t before = open_descriptors();
  std::vector<LocalSocket> waiting;
  for (int i = 0; i < 3; ++i) waiting.push_back(wait_there());
  // Each has a socket and a descriptor of the process at both ends, and two of memory.
  ASSERT_TRUE(eventually([&] { return open_descriptors() == before + 3 * 6; }));
  LocalSocket refused = wait_there(false);
  EXPECT_TRUE(absl::IsUnavailable(refused.receive(soon()).status()));
  waiting.pop_back();
  ASSERT_TRUE(eventually([&] { return open_descriptors() == before + 2 * 6 + 2; }));
  waiting.push_back(wait_there());
  EXPECT_TRUE(late->transport->start(late->identity, &late->sink).ok());
  for (LocalSocket& each : waiting) EXPECT_TRUE(each.receive(soon()).ok());
}

// Without descriptors the listener stays readable. The watcher must not try again and again.
TEST(OutOfDescriptorsTest, AcceptingPausesUntilThereAreDescriptorsAgain) {
  HeldTimers clock;
  auto a = started_end(clock, 1), b = started_end(clock, 2);
  // UBSan needs a descriptor when it first meets a type in a virtual call. So use the clock now.
  ASSERT_TRUE(connect_ends(*a, *b).ok());
  constexpr size_t kOthers = 2;  // each transport tidies its memory now and then
  ASSERT_TRUE(eventually([&] { return clock.timers() == kOthers; }));
  const std::string name = rpc_internal::listener_at(b->transport->address()).value();
  const FileDescriptor socket(::socket(AF_UNIX, SOCK_SEQPACKET | SOCK_CLOEXEC, 0));
  sockaddr_un address = {};
  address.sun_family = AF_UNIX;
  name.copy(address.sun_path + 1, name.size());
  rlimit old = {};
  ::getrlimit(RLIMIT_NOFILE, &old);
  rlimit none = old;
  none.rlim_cur = 3;
  ASSERT_EQ(::setrlimit(RLIMIT_NOFILE, &none), 0);
  const int connected =
      ::connect(socket.get(), reinterpret_cast<sockaddr*>(&address),
                static_cast<socklen_t>(offsetof(sockaddr_un, sun_path) + 1 + name.size()));
  const bool paused = eventually([&] { return clock.timers() == kOthers + 1; });
  ::setrlimit(RLIMIT_NOFILE, &old);
  ASSERT_EQ(connected, 0);
  ASSERT_TRUE(paused);
  ASSERT_EQ(::send(socket.get(), "rubbish", 7, MSG_NOSIGNAL), 7);
  clock.fire(std::chrono::seconds(1));
  char answer;
  EXPECT_EQ(::recv(socket.get(), &answer, 1, 0), 0);  // accepted, and closed for the rubbish
}

}  // namespace
}  // namespace weft
