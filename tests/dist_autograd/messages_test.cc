// Counts the frames that a backward pass between drivers sends.
#include <string>
#include <vector>

#include <ATen/core/Tensor.h>
#include <ATen/ops/ones.h>
#include <ATen/ops/rand.h>
#include <gtest/gtest.h>

#include "weft/dist_autograd/autograd_driver.h"
#include "weft/dist_autograd/context.h"
#include "weft/rpc/function.h"
#include "weft/rpc/verbs.h"
#include "weft/tests/support/runtime_world.h"

namespace messages_test {

using weft::dist_autograd::Context;
using weft::testing::eventually;
using weft::testing::HeldTimers;
using weft::testing::RuntimeWorld;

at::Tensor leaf() { return at::rand({3}, at::kDouble).set_requires_grad(true); }

at::Tensor twice(const at::Tensor& x) { return x.mul(2); }
WEFT_REGISTER_FUNCTION(twice);

// Passes x through all named workers and back.
at::Tensor pass_on(const at::Tensor& x, std::vector<std::string> rest) {
  if (rest.empty()) return x.mul(2);
  const std::string next = rest.front();
  rest.erase(rest.begin());
  return weft::rpc_sync(next, pass_on, x, rest).mul(2);
}
WEFT_REGISTER_FUNCTION(pass_on);

at::Tensor parameter() { return leaf(); }
WEFT_REGISTER_FUNCTION(parameter);

// The counts are those of docs/backward_protocol.md. Messages that nobody waits for do not count
// here: the drivers' clock stands still, so they stay queued.
class Messages : public ::testing::Test {
 protected:
  // Counts the posts of one pass that starts at the sum of what `forward` returns.
  template <class Forward>
  size_t of(Forward forward) {
    Context context(world_.runtime(0));
    const at::Tensor loss = forward().sum();
    const size_t before = world_.autograd_posts();
    context.backward({loss});
    return world_.autograd_posts() - before;
  }
  // Sends the messages that wait for another one to carry them, and counts the posts.
  size_t rest() {
    const size_t before = world_.autograd_posts();
    clock_.fire(std::chrono::seconds(1));
    return world_.autograd_posts() - before;
  }

  HeldTimers clock_;
  RuntimeWorld world_{RuntimeWorld::Options{
      .workers = 4, .references = false, .autograd = true, .timers = &clock_}};
};

TEST_F(Messages, NoneOnOneWorker) {
  EXPECT_EQ(of([] { return leaf().mul(2); }), 0u);
  EXPECT_EQ(rest(), 0u);
}

TEST_F(Messages, TwoBetweenTwoWorkers) {
  EXPECT_EQ(of([] { return weft::rpc_sync("w1", twice, leaf()); }), 2u);  // GRAD both ways
  EXPECT_EQ(rest(), 1u);  // PUBLISH and RELEASE_CONTEXT share a frame
  EXPECT_TRUE(world_.nothing_left());
}

TEST_F(Messages, TwoPerHopOfAChain) {
  std::vector<std::string> path;
  for (const char* next : {"w2", "w3"}) {
    path.push_back(next);
    const size_t hops = 1 + path.size();
    EXPECT_EQ(of([&] { return weft::rpc_sync("w1", pass_on, leaf(), path); }), 2 * hops);
  }
  clock_.fire(std::chrono::seconds(1));
  EXPECT_TRUE(eventually([&] {
    clock_.fire(std::chrono::seconds(1));  // w1 passes the release on when it has heard of it
    return world_.autograd(3).gauges().contexts == 0;
  }));
}

TEST_F(Messages, OnePerEdgeOfADiamond) {
  const auto forward = [] {
    const at::Tensor x = leaf();
    return weft::rpc_sync("w1", twice, x).add(weft::rpc_sync("w2", twice, x));
  };
  EXPECT_EQ(of(forward), 4u);
}

TEST_F(Messages, AReplyToWhichNothingFlowsBackTakesAReport) {
  EXPECT_EQ(of([] { return weft::rpc_sync("w1", parameter); }), 2u);  // GRAD, REPORT
}

TEST_F(Messages, AnUnusedCallTakesADiscoveryWaveAndASeal) {
  const auto forward = [] {
    const at::Tensor x = leaf();
    (void)weft::rpc_sync("w1", twice, x);
    return weft::rpc_sync("w1", twice, x);
  };
  EXPECT_EQ(of(forward), 6u);  // GRAD and ACTIVATE both ways, SEAL, REPORT
}

TEST_F(Messages, EndsOfPassesAndContextsRideOnTheNextGradient) {
  constexpr size_t kRounds = 10;
  for (size_t round = 0; round < kRounds; ++round) {
    EXPECT_EQ(of([] { return weft::rpc_sync("w1", twice, leaf()); }), 2u);
    // The context of the round before is released at w1, although no message was sent just for
    // that.
    EXPECT_EQ(world_.autograd(1).gauges().contexts, 1u);
  }
  EXPECT_EQ(world_.autograd_posts(), 2 * kRounds);
  EXPECT_EQ(rest(), 1u);
  EXPECT_TRUE(world_.nothing_left());
}

TEST_F(Messages, WhatWaitsForARideIsSentWhenTheWorkerStops) {
  EXPECT_EQ(of([] { return weft::rpc_sync("w1", twice, leaf()); }), 2u);
  world_.autograd(0).stop();
  EXPECT_TRUE(eventually([&] { return world_.autograd(1).gauges().contexts == 0; }));
}

}  // namespace messages_test
