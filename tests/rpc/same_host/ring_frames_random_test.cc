// Random frames through a small ring, and a peer that corrupts its bytes.
#include <iostream>
#include <map>
#include <random>

#include <gtest/gtest.h>

#include "weft/tests/rpc/same_host/frame_ring.h"
#include "weft/tests/shm/hostile_peer.h"
#include "weft/tests/support/random_test.h"

namespace weft {
namespace {

using testing::expect_frame;
using testing::frame_with;
using testing::FrameRing;

class RandomFrames : public ::testing::Test {
 protected:
  RandomFrames() { std::cout << "WEFT_SEED=" << seed_ << "\n"; }

  uint64_t draw(uint64_t limit) { return random_() % limit; }
  std::vector<size_t> shape() {
    std::vector<size_t> sizes(draw(4));
    for (size_t& size : sizes) size = draw(4) == 0 ? draw(6000) : draw(200);
    return sizes;
  }

  const uint64_t seed_ = random_test_seed();
  std::mt19937_64 random_{seed_};
};

TEST_F(RandomFrames, EachFrameArrivesOnceAndWholeAndSmallOnesInOrder) {
  for (int round = 0; round < 40; ++round) {
    FrameRing ring(size_t{256} << draw(6));
    std::map<uint64_t, FramePtr> sent;
    std::vector<uint64_t> small;  // in the order of sending
    for (int step = 0; step < 300; ++step) {
      if (draw(3) != 0) {
        const uint64_t number = sent.size();
        const FramePtr frame = frame_with(number, shape());
        sent[number] = frame;
        if (ring.is_small(*frame)) small.push_back(number);
        ring.writer.push(frame);
      }
      if (draw(2) == 0) ring.pump();
      if (draw(3) == 0) {
        ASSERT_TRUE(ring.read(1 + draw(2000)).ok());
      }
    }
    ring.writer.push_close();
    bool closed = false;
    for (int i = 0; !closed; ++i) {
      ASSERT_LT(i, 100000) << "the ring stands still";
      ring.pump();
      const auto result = ring.read();
      ASSERT_TRUE(result.ok()) << result.status();
      closed = result->closed;
    }
    EXPECT_EQ(ring.done.size(), sent.size());
    std::vector<uint64_t> small_read;
    for (const Frame& frame : ring.frames) {
      const auto found = sent.find(frame.header.sequence);
      ASSERT_NE(found, sent.end()) << "a frame came twice, or was never sent";
      expect_frame(frame, *found->second);
      if (ring.is_small(*found->second)) small_read.push_back(found->first);
      sent.erase(found);
    }
    EXPECT_TRUE(sent.empty()) << sent.size() << " frames are lost";
    EXPECT_EQ(small_read, small);
  }
}

TEST_F(RandomFrames, CorruptionEndsInAnErrorOrInAFrameAndNowhereElse) {
  const uint64_t corruptions = ring_test::corruptions_to_try() / 20;
  uint64_t done = 0, refusals = 0;
  while (done < corruptions) {
    FrameRing ring(size_t{1024} << draw(3), {.max_frame_bytes = 1 << 16, .max_payloads = 64});
    for (uint64_t number = 0; number < 40; ++number) {
      ring.writer.push(frame_with(number, shape()));
      if (!ring.writer.pump(ring.done).ok()) break;
      for (uint64_t i = draw(3); i > 0; --i, ++done) {
        if (draw(10) != 0) {
          ring.memory[draw(ring.size)] ^= std::byte(1 + draw(255));
        } else {
          (draw(2) == 0 ? ring.header->tail : ring.header->head) += 16 * draw(64);
        }
      }
      const auto result = ring.read(1 + draw(3000));
      if (result.ok()) continue;
      EXPECT_FALSE(result.status().message().empty());
      ++refusals;
      break;
    }
    for (const Frame& frame : ring.frames) {
      EXPECT_LE(frame.payloads.size(), 64u);
      EXPECT_LE(frame.payload_bytes(), size_t{1} << 16);
      for (const Payload& payload : frame.payloads) {  // all of it may be read
        EXPECT_EQ(std::string(reinterpret_cast<const char*>(payload.data), payload.size).size(),
                  payload.size);
      }
    }
  }
  EXPECT_GT(refusals, 0u);
}

}  // namespace
}  // namespace weft
