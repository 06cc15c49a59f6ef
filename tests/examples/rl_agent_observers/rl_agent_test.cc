// The agent: what it records, which observer it tells of a mistake, and that it learns. The order
// of calls must make no difference.
#include <algorithm>
#include <random>

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "weft/examples/rl_agent_observers/agent.h"
#include "weft/examples/rl_agent_observers/cart_pole.h"
#include "weft/tests/support/error_of.h"
#include "weft/tests/support/runtime_world.h"

namespace weft::examples {
namespace {

using ::testing::ElementsAre;
using ::testing::HasSubstr;
using weft::testing::error_of;
using weft::testing::RuntimeWorld;
using weft::testing::TransportKind;

TEST(EpisodeProgress, IsSolvedByTheAverageOfAHundredAndRemembersWhen) {
  std::vector<int64_t> updates;
  EpisodeProgress progress([&](const auto& now) { updates.push_back(now.updates); });
  for (int i = 0; i < 50; ++i) progress.episode(450);
  for (int i = 0; i < 49; ++i) progress.episode(500);
  EXPECT_FALSE(progress.solved());
  progress.update();
  progress.episode(500);
  ASSERT_TRUE(progress.solved());
  progress.episode(100);
  EXPECT_EQ(progress.solved()->episodes, 100);
  EXPECT_EQ(progress.solved()->average, 475);
  EXPECT_THAT(updates, ElementsAre(1));
  EXPECT_THAT(progress.now().to_string(), HasSubstr("update 1, 101 episodes, 47600 steps"));
}

class RlAgent : public ::testing::Test {
 protected:
  // The calling observer. The agent tells observers apart by their worker.
  CallContext& caller(uint32_t observer = 1) {
    auto& context = callers_[observer];
    if (context == nullptr) {
      context = std::make_shared<CallContext>(clock_, WorkerId{observer, 1}, "observer", kNever);
    }
    return *context;
  }

  static Observation observation(at::Tensor places, bool ended = false) {
    const int64_t rows = places.size(0);
    return {places, torch::zeros({rows, 4}), torch::ones({rows}),
            torch::full({rows}, ended, at::kBool)};
  }

  SystemClock clock_;
  std::map<uint32_t, std::shared_ptr<CallContext>> callers_;
};

// Environments in the test, without an observer.
class Played {
 public:
  Played(int64_t first_place, int64_t environments, uint64_t seed) {
    seen_ = {torch::arange(first_place, first_place + environments),
             torch::empty({environments, 4}), torch::zeros({environments}),
             torch::zeros({environments}, at::kBool)};
    for (int64_t i = 0; i < environments; ++i) {
      environments_.emplace_back(seed + static_cast<uint64_t>(first_place + i));
    }
    show();
  }
  const Observation& seen() const { return seen_; }
  void step(const at::Tensor& actions) {
    for (size_t i = 0; i < environments_.size(); ++i) {
      const auto row = static_cast<int64_t>(i);
      const bool ended = environments_[i].step(actions[row].item<int64_t>());
      if (ended) environments_[i].begin();
      seen_.rewards[row] = 1;
      seen_.ended[row] = ended;
    }
    show();
  }

 private:
  void show() {
    // A new tensor: a batch may still hold the old one.
    seen_.states = torch::empty_like(seen_.states);
    for (size_t i = 0; i < environments_.size(); ++i) {
      std::copy_n(environments_[i].state().begin(), 4, seen_.states.data_ptr<float>() + 4 * i);
    }
    seen_.rewards = seen_.rewards.clone();
    seen_.ended = seen_.ended.clone();
  }
  std::vector<CartPole> environments_;
  Observation seen_;
};

TEST_F(RlAgent, LearnsToKeepThePoleUp) {
  Agent agent({.steps_per_update = 500, .lockstep = 8});
  Played played(0, 8, 1);
  while (agent.progress().now().updates < 2) played.step(agent.act(caller(), played.seen()));
  const double before = agent.progress().now().average;
  while (agent.progress().now().updates < 30) played.step(agent.act(caller(), played.seen()));
  EXPECT_GT(agent.progress().now().average, 2 * before);
}

// Three observers in lockstep. Their calls come in a different order each time.
TEST_F(RlAgent, TheCurveDoesNotDependOnTheOrderOfCalls) {
  std::vector<std::string> curves[2];
  at::Tensor policies[2];
  for (unsigned seed : {1u, 2u}) {
    std::vector<std::string>& curve = curves[seed - 1];
    std::mt19937 order(seed);
    RuntimeWorld world(TransportKind::kInproc, 1);
    CallScopeGuard scope(world.scope(0));
    Agent agent({.steps_per_update = 200, .lockstep = 3},
                [&](const auto& now) { curve.push_back(now.to_string()); });
    std::vector<Played> observers{{0, 2, 9}, {2, 2, 9}, {4, 2, 9}};
    std::vector<size_t> turns{0, 1, 2};
    while (curve.size() < 8) {
      std::shuffle(turns.begin(), turns.end(), order);
      std::map<size_t, Future<at::Tensor>> actions;
      for (const size_t i : turns) {
        actions[i] = agent.act_batched(caller(static_cast<uint32_t>(i) + 1), observers[i].seen());
      }
      for (const size_t i : turns) observers[i].step(actions[i].wait());
    }
    EXPECT_EQ(agent.batches().mean(), 3);
    policies[seed - 1] = agent.evaluate(torch::eye(4));
  }
  EXPECT_EQ(curves[0], curves[1]);
  EXPECT_TRUE(torch::equal(policies[0], policies[1]));  // to the last bit
}

TEST_F(RlAgent, OneCallAndTwoCallsRecordTheSame) {
  const auto last = [&](bool two_calls) {
    std::string last;
    Agent agent({.steps_per_update = 100, .lockstep = 1},
                [&](const auto& now) { last = now.to_string(); });
    Played played(0, 1, 5);
    for (int step = 0; step < 1000; ++step) {
      const Observation& seen = played.seen();
      if (two_calls) {
        played.step(agent.select_action(caller(), seen.places, seen.states));
        agent.report_reward(caller(), seen.places, seen.rewards, seen.ended);
      } else {
        played.step(agent.act(caller(), seen));
      }
    }
    return last;
  };
  EXPECT_THAT(last(true), HasSubstr("update "));
  EXPECT_EQ(last(true), last(false));
}

TEST_F(RlAgent, MistakesAreNamed) {
  Agent agent({});
  const at::Tensor places = torch::arange(2);
  const auto select = [&](const at::Tensor& where, const at::Tensor& states) {
    return std::string(
        error_of([&] { return agent.select_action(caller(), where, states); }).message());
  };
  EXPECT_THAT(select(places, torch::ones({2, 3})),
              HasSubstr("an observer's states must be [2, 4] of Float on cpu, but it sent [2, 3]"));
  EXPECT_THAT(select(places, torch::ones({2, 4}, at::kDouble)), HasSubstr("Double"));
  EXPECT_THAT(select(places, torch::ones({4, 2}).t()), HasSubstr("with gaps"));
  EXPECT_THAT(select(at::Tensor(), torch::ones({2, 4})), HasSubstr("it sent no tensor"));
  EXPECT_THAT(select(torch::zeros({2}, at::kLong), torch::ones({2, 4})),
              HasSubstr("hold 0 more than once"));
  EXPECT_THAT(select(places, torch::full({2, 4}, NAN)), HasSubstr("states hold nan"));
  const auto report = [&](const at::Tensor& rewards, const at::Tensor& ended) {
    const auto call = [&] {
      agent.report_reward(caller(), places, rewards, ended);
      return 0;
    };
    return std::string(error_of(call).message());
  };
  EXPECT_THAT(report(torch::ones({2}), torch::ones({3}, at::kBool)),
              HasSubstr("ended must be [2] of Bool"));
  EXPECT_THAT(report(torch::full({2}, INFINITY), torch::ones({2}, at::kBool)),
              HasSubstr("rewards hold inf; numbers up to 1e+06 can be"));
}

TEST_F(RlAgent, APlaceBelongsToTheObserverThatCameFirst) {
  Agent agent({});
  (void)agent.act(caller(1), observation(torch::arange(3)));
  const absl::Status status =
      error_of([&] { return agent.act(caller(2), observation(torch::arange(2, 4))); });
  EXPECT_EQ(status.code(), absl::StatusCode::kPermissionDenied);
  EXPECT_THAT(std::string(status.message()), HasSubstr("place 2 is another observer's"));
  agent.forget(WorkerId{1, 1});
  (void)agent.act(caller(2), observation(torch::arange(2, 4)));
}

TEST_F(RlAgent, ActionsWithoutRewardsAndRewardsWithoutActionsAreLeftOut) {
  Agent agent({.steps_per_update = 4, .lockstep = 1});
  const at::Tensor place = torch::zeros({1}, at::kLong);
  const auto report = [&](bool ended) {
    agent.report_reward(caller(), place, torch::ones({1}), torch::full({1}, ended, at::kBool));
  };
  report(true);
  for (int step = 0; step < 4; ++step) {
    (void)agent.select_action(caller(), place, torch::zeros({1, 4}));
    (void)agent.select_action(caller(), place, torch::zeros({1, 4}));  // as if the answer was lost
    report(step == 3);
    report(step == 3);
  }
  EXPECT_EQ(agent.progress().now().steps, 4);
  EXPECT_EQ(agent.progress().now().episodes, 1);
  EXPECT_EQ(agent.progress().now().updates, 1);
  EXPECT_TRUE(agent.status().ok());
}

TEST_F(RlAgent, ForgetsHalfEpisodesOfWhoIsGone) {
  Agent agent({.steps_per_update = 1, .lockstep = 1});
  const at::Tensor place = torch::zeros({1}, at::kLong);
  const auto step = [&](bool ended) {
    const at::Tensor action = agent.select_action(caller(), place, torch::zeros({1, 4}));
    agent.report_reward(caller(), place, torch::ones({1}), torch::full({1}, ended, at::kBool));
    return action;
  };
  (void)step(false);
  (void)step(false);
  agent.forget(WorkerId{1, 1});
  (void)step(true);
  EXPECT_EQ(agent.progress().now().steps, 1);
  EXPECT_EQ(agent.progress().now().updates, 1);  // of a single step, which has no deviation
  (void)step(false);
}

// One wrong call is batched with others, also when a batch waits for its last call.
TEST_F(RlAgent, AWrongShapeConcernsNobodyElse) {
  for (const size_t lockstep : {size_t{0}, size_t{2}}) {
    RuntimeWorld world(TransportKind::kInproc, 1);
    CallScopeGuard scope(world.scope(0));
    Agent agent({.lockstep = lockstep});
    const auto one = agent.act_batched(caller(1), observation(torch::arange(1)));
    Observation wrong = observation(torch::arange(5, 6));
    wrong.states = torch::zeros({1, 3});
    const absl::Status status =
        error_of([&] { return agent.act_batched(caller(2), wrong).wait(); });
    EXPECT_THAT(std::string(status.message()), HasSubstr("it sent [1, 3]"));
    const auto other = agent.act_batched(caller(3), observation(torch::arange(7, 8)));
    EXPECT_EQ(one.wait().sizes(), at::IntArrayRef({1}));
    EXPECT_EQ(other.wait().sizes(), at::IntArrayRef({1}));
  }
}

}  // namespace
}  // namespace weft::examples
