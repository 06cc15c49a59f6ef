#include "weft/examples/rl_agent_observers/observer.h"

#include <algorithm>
#include <chrono>

namespace weft::examples {

namespace {

const CallOptions kPatience{.timeout = std::chrono::minutes(1)};

// Gives environments with neighbouring seeds and places unrelated random numbers.
uint64_t mixed(uint64_t seed, int64_t place) {
  return (seed * 0x9E3779B97F4A7C15u) ^ (static_cast<uint64_t>(place) * 0xBF58476D1CE4E5B9u);
}

}  // namespace

Observer::Observer(int64_t first_place, int64_t environments, uint64_t seed)
    : seen_{torch::arange(first_place, first_place + environments),
            torch::empty({environments, CartPole::kState}), torch::zeros({environments}),
            torch::zeros({environments}, at::kBool)} {
  for (int64_t i = 0; i < environments; ++i) {
    environments_.emplace_back(mixed(seed, first_place + i));
    std::copy_n(environments_.back().state().begin(), CartPole::kState,
                seen_.states.data_ptr<float>() + CartPole::kState * i);
  }
}

at::Tensor Observer::ask(const RRef<Agent>& to, CallShape shape) {
  const auto agent = to.with(kPatience);
  switch (shape) {
    case CallShape::kTwoCalls:
      return agent.rpc_sync(&Agent::select_action, seen_.places, seen_.states);
    case CallShape::kOneCall:
      return agent.rpc_sync(&Agent::act, seen_);
    case CallShape::kBatched:
      return agent.rpc_sync(&Agent::act_batched, seen_);
  }
  throw std::invalid_argument("no such shape of calls");
}

at::Tensor Observer::run(const RRef<Agent>& agent, CallShape shape, int64_t steps) {
  at::Tensor waits = torch::empty({steps});
  for (int64_t step = 0; step < steps; ++step) {
    const auto asked = std::chrono::steady_clock::now();
    const at::Tensor actions = ask(agent, shape);
    waits.data_ptr<float>()[step] =
        std::chrono::duration<float, std::micro>(std::chrono::steady_clock::now() - asked).count();
    const auto* action = actions.const_data_ptr<int64_t>();
    for (size_t i = 0; i < environments_.size(); ++i) {
      CartPole& environment = environments_[i];
      const bool ended = environment.step(action[i]);
      if (ended) environment.begin();
      seen_.rewards.data_ptr<float>()[i] = 1;
      seen_.ended.data_ptr<bool>()[i] = ended;
      std::copy_n(environment.state().begin(), CartPole::kState,
                  seen_.states.data_ptr<float>() + CartPole::kState * i);
    }
    if (shape == CallShape::kTwoCalls) {
      agent.with(kPatience).rpc_sync(&Agent::report_reward, seen_.places, seen_.rewards,
                                     seen_.ended);
    }
  }
  return waits;
}

}  // namespace weft::examples
