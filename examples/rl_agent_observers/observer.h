// An observer has environments, asks the agent what to do in them, and does it.
//
// Thread safety: remote calls run one at a time.
#pragma once

#include <cstdint>
#include <vector>

#include "weft/examples/rl_agent_observers/agent.h"
#include "weft/examples/rl_agent_observers/cart_pole.h"
#include "weft/rref/rref.h"

namespace weft::examples {

enum class CallShape : int64_t {
  kTwoCalls,  // select_action and report_reward for each step
  kOneCall,   // act
  kBatched,   // act_batched
};

class Observer {
 public:
  // Its environments have the places `first_place` and those after it.
  Observer(int64_t first_place, int64_t environments, uint64_t seed);

  // Runs `steps` steps in each environment, and continues where the last run stopped. Returns the
  // time of each wait for an action in microseconds, float [steps]. Throws what the agent threw,
  // and DeadlineExceeded if the agent does not answer within a minute.
  at::Tensor run(const RRef<Agent>& agent, CallShape shape, int64_t steps);

 private:
  at::Tensor ask(const RRef<Agent>& agent, CallShape shape);

  std::vector<CartPole> environments_;
  Observation seen_;
};
WEFT_REGISTER_CLASS(Observer, serial, constructor<int64_t, int64_t, uint64_t>(), &Observer::run);

}  // namespace weft::examples
