// A peer that is killed in the middle of a large frame.
#include <csignal>
#include <future>
#include <string>
#include <utility>
#include <vector>

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "weft/async/future.h"
#include "weft/tests/rpc/same_host/process_state.h"
#include "weft/tests/rpc/same_host/raw_peer.h"
#include "weft/tests/support/eventually.h"
#include "weft/tests/support/spawning_test.h"

namespace weft {
namespace {

using testing::eventually;
using ::testing::HasSubstr;
using testing::open_descriptors;
using testing::shared_mappings;

// Holds the serving thread inside the first callback until the test lets it go.
class HoldsFirst final : public TransportSink {
 public:
  absl::Status on_accept(const PeerIdentity&) override { return absl::OkStatus(); }
  void on_open(const ConnectionPtr&) override {}
  void on_frames(const ConnectionPtr&, std::vector<Frame> frames) override {
    frames_ += frames.size();
    first.set_value(frames[0].header.sequence);
    (void)let_go.future().result();
  }
  void on_closed(const ConnectionPtr&, absl::Status reason) override {
    closed.set(std::pair(frames_, std::move(reason)));
  }

  // Not Weft's Promise: a serving thread wakes those who wait for that one after its callback.
  std::promise<uint64_t> first;
  Promise<void> let_go;
  Promise<std::pair<size_t, absl::Status>> closed;  // with the number of frames

 private:
  size_t frames_ = 0;  // the serving thread's
};

class PeerDeathTest : public testing::SpawningTest {};

TEST_F(PeerDeathTest, HalfALargeFrameIsDroppedAndTheDeathIsNamed) {
  SystemClock clock;
  HoldsFirst sink;
  SameHostTransport transport(clock);
  const PeerIdentity self{"group", "far", {1, 1}};
  ASSERT_TRUE(transport.listen().ok());
  const size_t descriptors = open_descriptors(), mappings = shared_mappings();
  ASSERT_TRUE(transport.start(self, &sink).ok());
  start_command(
      {WEFT_BUILD_DIR "/tests/rpc/kill_peer", transport.address(), std::to_string(self.id.bits())});
  const pid_t process = process_;
  read_until("sent");
  ASSERT_THAT(output_, HasSubstr("sent")) << errors_;
  EXPECT_EQ(sink.first.get_future().get(), 1u);
  // The ring is full of pieces, or soon will be. The peer has far more than the ring holds.
  ASSERT_EQ(::kill(process, SIGKILL), 0);
  EXPECT_EQ(finish(), 1000 + SIGKILL);
  sink.let_go.set_value();
  const auto closed = sink.closed.future().result();
  ASSERT_TRUE(closed.ok());
  EXPECT_EQ(closed->first, 1u);
  EXPECT_TRUE(absl::IsUnavailable(closed->second)) << closed->second;
  EXPECT_THAT(std::string(closed->second.message()), HasSubstr(std::to_string(process)));
  end_command();
  EXPECT_TRUE(eventually(
      [&] { return open_descriptors() == descriptors && shared_mappings() == mappings; }));
}

}  // namespace
}  // namespace weft
