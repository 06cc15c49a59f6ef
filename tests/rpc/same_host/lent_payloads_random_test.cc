// Two transports that lend each other payloads while their connections end in all ways.
#include <atomic>
#include <iostream>
#include <memory>
#include <optional>
#include <random>
#include <thread>
#include <utility>
#include <vector>

#include <gtest/gtest.h>

#include "weft/base/mutex.h"
#include "weft/tests/rpc/same_host/frame_ring.h"
#include "weft/tests/rpc/same_host/raw_peer.h"
#include "weft/tests/support/eventually.h"
#include "weft/tests/support/random_test.h"

namespace weft {
namespace {

using testing::eventually;
using testing::frame_with;

// Keeps some of the frames for a while, and checks each when it comes and before it is dropped.
class Keeper final : public TransportSink {
 public:
  explicit Keeper(uint64_t seed) : random_(seed) {}

  absl::Status on_accept(const PeerIdentity&) override { return absl::OkStatus(); }
  void on_open(const ConnectionPtr& connection) override ABSL_LOCKS_EXCLUDED(mutex_) {
    MutexLock lock(mutex_);
    accepted_ = connection;
  }
  void on_frames(const ConnectionPtr&, std::vector<Frame> frames) override
      ABSL_LOCKS_EXCLUDED(mutex_) {
    std::vector<Frame> dropped;
    MutexLock lock(mutex_);
    for (Frame& frame : frames) {
      check(frame);
      lent_ += frame.payloads[0].lent ? 1 : 0;
      kept_.push_back(std::move(frame));
      std::swap(kept_.back(), kept_[random_() % kept_.size()]);
    }
    while (kept_.size() > 12) {
      check(kept_.back());
      dropped.push_back(std::move(kept_.back()));
      kept_.pop_back();
    }
  }
  void on_closed(const ConnectionPtr& connection, absl::Status reason) override
      ABSL_LOCKS_EXCLUDED(mutex_) {
    if (absl::IsInvalidArgument(reason) || absl::IsResourceExhausted(reason)) {
      ADD_FAILURE() << reason;
    }
    MutexLock lock(mutex_);
    if (accepted_ == connection) accepted_ = nullptr;
    closed.fetch_add(1);
  }

  // The open connection that came from the other side.
  ConnectionPtr accepted() ABSL_LOCKS_EXCLUDED(mutex_) {
    MutexLock lock(mutex_);
    return accepted_;
  }
  void drop_all() ABSL_LOCKS_EXCLUDED(mutex_) {
    std::vector<Frame> dropped;
    MutexLock lock(mutex_);
    for (const Frame& frame : kept_) check(frame);
    dropped.swap(kept_);
  }
  size_t lent() ABSL_LOCKS_EXCLUDED(mutex_) {
    MutexLock lock(mutex_);
    return lent_;
  }

  std::atomic<size_t> closed{0};

 private:
  static void check(const Frame& frame) {
    for (size_t i = 0; i < frame.payloads.size(); ++i) {
      const Payload& payload = frame.payloads[i];
      for (size_t at = 0; at < payload.size; at += 997) {
        ASSERT_EQ(payload.data[at], testing::byte_of(frame.header.sequence, i, at));
      }
    }
  }

  Mutex mutex_;
  std::mt19937_64 random_ ABSL_GUARDED_BY(mutex_);
  std::vector<Frame> kept_ ABSL_GUARDED_BY(mutex_);
  size_t lent_ ABSL_GUARDED_BY(mutex_) = 0;
  ConnectionPtr accepted_ ABSL_GUARDED_BY(mutex_);
};

// The frame with payloads that the connection has copied to where it can lend them.
FramePtr copied_for(Connection& connection, const Frame& frame) {
  Frame copy = frame;
  for (Payload& payload : copy.payloads) {
    std::optional<Payload> made = connection.copy_payload(payload.data, payload.size);
    if (made.has_value()) payload = *std::move(made);
  }
  return std::make_shared<Frame>(std::move(copy));
}

TEST(LentPayloadsRandomTest, NoBlockIsUsedAgainWhileItsPayloadLivesAndAllComeBack) {
  const uint64_t seed = random_test_seed();
  std::cout << "WEFT_SEED=" << seed << "\n";
  std::mt19937_64 random(seed);
  SystemClock clock;
  Keeper sinks[] = {Keeper(seed + 1), Keeper(seed + 2)};
  // Small arenas and rings: payloads find no block now and then, and segments come and go.
  const SameHostTransportOptions options = {.ring_bytes = 8192,
                                            .arena_bytes = uint64_t{6} << 20,
                                            .tidy_every = std::chrono::milliseconds(1),
                                            .unused_for = Nanoseconds(0)};
  SameHostTransport ends[] = {SameHostTransport(clock, options), SameHostTransport(clock, options)};
  const PeerIdentity names[] = {{"group", "w1", {1, 1}}, {"group", "w2", {2, 1}}};
  for (size_t i = 0; i < 2; ++i) ASSERT_TRUE(ends[i].start(names[i], &sinks[i]).ok());
  const uint64_t rounds = number_from_environment("WEFT_LENDING_ROUNDS", 5);
  uint64_t number = 0;
  std::vector<FramePtr> again[2];
  for (size_t round = 0; round < rounds; ++round) {
    Promise<ConnectionPtr> promise;
    ends[0].connect(ends[1].address(), names[1], testing::soon(),
                    [&](absl::StatusOr<ConnectionPtr> made) { promise.set(std::move(made)); });
    const absl::StatusOr<ConnectionPtr> near = promise.future().result();
    ASSERT_TRUE(near.ok()) << near.status();
    ASSERT_TRUE(eventually([&] { return sinks[1].accepted() != nullptr; }));
    const ConnectionPtr both[] = {*near, sinks[1].accepted()};
    std::vector<std::thread> senders;
    for (size_t i = 0; i < 2; ++i) {
      // Some of the last round are sent again, as a session does.
      std::vector<FramePtr> repeated = std::exchange(again[i], {}), frames;
      for (size_t n = random() % 30; n > 0; --n) {
        std::vector<size_t> sizes(1 + random() % 3);
        for (size_t& size : sizes) size = random() % 4 == 0 ? random() % 300 : random() % 150000;
        frames.push_back(frame_with(++number, sizes));
      }
      senders.emplace_back([&later = again[i], repeated = std::move(repeated),
                            frames = std::move(frames), connection = both[i]] {
        for (const FramePtr& frame : repeated) connection->send(frame);
        for (const FramePtr& frame : frames) {
          const uint64_t sequence = frame->header.sequence;
          FramePtr made = sequence % 2 == 0 ? frame : copied_for(*connection, *frame);
          connection->send(made);
          if (sequence % 3 == 0) later.push_back(std::move(made));
        }
      });
    }
    const size_t end = random() % 2, spins = random() % 3000;
    for (size_t i = 0; i < spins; ++i) std::this_thread::yield();
    if (random() % 2 == 0) {
      both[end]->close();
    } else {
      both[end]->abort(absl::AbortedError("enough"));
    }
    for (std::thread& sender : senders) sender.join();
    for (Keeper& sink : sinks) {
      ASSERT_TRUE(eventually([&] { return sink.closed.load() == round + 1; }));
    }
  }
  EXPECT_GT(sinks[0].lent() + sinks[1].lent(), 0u);
  for (Keeper& sink : sinks) sink.drop_all();
  for (auto& frames : again) frames.clear();
  for (const SameHostTransport& end : ends) {
    EXPECT_TRUE(eventually([&] { return end.arena_statistics().blocks.lent_blocks == 0; }));
    EXPECT_EQ(end.arena_statistics().blocks.held_blocks, 0u);
    EXPECT_EQ(end.arena_statistics().violations, 0u);
  }
}

}  // namespace
}  // namespace weft
