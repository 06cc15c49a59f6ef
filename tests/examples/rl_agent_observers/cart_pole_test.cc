// The environment in C++ against episodes of gymnasium's (golden/cart_pole.json).
#include "weft/examples/rl_agent_observers/cart_pole.h"

#include <cmath>
#include <fstream>

#include <gtest/gtest.h>
#include <nlohmann/json.hpp>

namespace weft::examples {
namespace {

TEST(CartPole, RepeatsTheEpisodesOfGymnasium) {
  std::ifstream file(WEFT_SOURCE_DIR "/tests/examples/golden/cart_pole.json");
  const nlohmann::json golden = nlohmann::json::parse(file);
  ASSERT_EQ(golden.at("episodes").size(), 13u);
  for (const auto& episode : golden.at("episodes")) {
    const auto& actions = episode.at("actions");
    const bool falls = !episode.at("truncated").get<bool>();
    auto before = episode.at("first").get<CartPole::State>();
    for (size_t i = 0; i < actions.size(); ++i) {
      // Each step from gymnasium's own state: roundings grow from step to step.
      CartPole environment(1);
      environment.begin_at(before);
      EXPECT_EQ(environment.step(actions[i].get<int64_t>()), falls && i + 1 == actions.size()) << i;
      const auto wanted = episode.at("states")[i].get<CartPole::State>();
      for (size_t k = 0; k < wanted.size(); ++k) {
        EXPECT_NEAR(environment.state()[k], wanted[k], 1e-12) << "step " << i << ", number " << k;
      }
      before = wanted;
    }
  }
}

TEST(CartPole, AnEpisodeEndsAfterItsLongestTime) {
  CartPole environment(1);
  bool ended = false;
  while (!ended) {
    const auto [position, velocity, angle, turn] = environment.state();
    ended = environment.step(angle + 0.3 * turn + 0.05 * position + 0.1 * velocity > 0 ? 1 : 0);
  }
  EXPECT_EQ(environment.steps(), CartPole::kLongest);
}

TEST(CartPole, BeginsNearTheMiddleAndDifferentlyEachTime) {
  CartPole one(1), same(1), other(2);
  EXPECT_EQ(one.state(), same.state());
  EXPECT_NE(one.state(), other.state());
  const CartPole::State first = one.state();
  while (!one.step(1)) {
  }
  one.begin();
  EXPECT_NE(one.state(), first);
  EXPECT_EQ(one.steps(), 0);
  for (const double number : one.state()) EXPECT_LE(std::abs(number), 0.05);
}

}  // namespace
}  // namespace weft::examples
