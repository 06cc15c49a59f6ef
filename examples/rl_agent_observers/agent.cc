// The method, in the order of the tutorial: the policy, select_action, the rewards, finish_episode.
// What follows says how the calls of observers reach these steps.
#include "weft/examples/rl_agent_observers/agent.h"

#include <cmath>
#include <utility>
#include <vector>

#include "weft/examples/rl_agent_observers/cart_pole.h"

namespace weft::examples {
namespace {

constexpr int64_t kHidden = 128;
constexpr std::chrono::microseconds kLongestWait{1000};  // of a call for other calls to join

}  // namespace

// ---- The method.

Policy::Policy() {
  hidden_ = register_module("hidden", torch::nn::Linear(CartPole::kState, kHidden));
  output_ = register_module("output", torch::nn::Linear(kHidden, CartPole::kActions));
}

at::Tensor Policy::forward(const at::Tensor& states) {
  return torch::log_softmax(output_(torch::relu(hidden_(states))), 1);
}

// Draws an action for each environment, with the probabilities of the policy.
at::Tensor Agent::choose(const at::Tensor& places, const at::Tensor& states) {
  const auto begun = std::chrono::steady_clock::now();
  const c10::InferenceMode no_graph;
  const int64_t rows = places.size(0);
  at::Tensor actions = torch::zeros({rows}, at::kLong);
  const auto* place = places.const_data_ptr<int64_t>();
  const float* state = states.const_data_ptr<float>();
  int64_t* action = actions.data_ptr<int64_t>();

  MutexLock lock(mutex_);
  const at::Tensor probabilities = acting_.forward(states).exp();
  const float* left = probabilities.const_data_ptr<float>();
  for (int64_t i = 0; i < rows; ++i) {
    Trajectory* trajectory = trajectories_.find(place[i]);
    if (trajectory == nullptr) continue;  // forgotten meanwhile: no caller waits
    action[i] = trajectory->draw() >= left[2 * i] ? 1 : 0;
    trajectory->add_action(state + CartPole::kState * i, action[i]);
  }
  ++choices_.count;
  choices_.time += std::chrono::steady_clock::now() - begun;
  return actions;
}

void Agent::record(const at::Tensor& places, const at::Tensor& rewards, const at::Tensor& ended) {
  const auto* place = places.const_data_ptr<int64_t>();
  MutexLock lock(mutex_);
  for (int64_t i = 0; i < places.size(0); ++i) {
    Trajectory* trajectory = trajectories_.find(place[i]);
    if (trajectory == nullptr) continue;
    if (!trajectory->add_reward(rewards.const_data_ptr<float>()[i])) continue;
    if (ended.const_data_ptr<bool>()[i] || trajectory->too_long()) finish_episode(*trajectory);
  }
}

// The return of an action is the discounted sum of the rewards that came after it.
void Agent::finish_episode(Trajectory& trajectory) {
  const size_t steps = trajectory.rewards.size();
  std::vector<float> returns(steps);
  double after = 0;
  for (size_t i = steps; i-- > 0;) {
    after = trajectory.rewards[i] + options_.gamma * after;
    returns[i] = static_cast<float>(after);
  }
  progress_.episode(static_cast<int64_t>(steps));
  updates_.add(trajectory, returns);
}

// One step of Adam on the REINFORCE loss. Observers go on with the old policy meanwhile.
void Agent::learn(Episodes episodes) {
  const auto steps = static_cast<int64_t>(episodes.actions.size());
  const at::Tensor states = torch::from_blob(episodes.states.data(), {steps, CartPole::kState});
  const at::Tensor actions = torch::from_blob(episodes.actions.data(), {steps, 1}, at::kLong);
  at::Tensor returns = torch::from_blob(episodes.returns.data(), {steps});
  returns = (returns - returns.mean()) / (returns.std(/*unbiased=*/false) + 1e-6);
  const at::Tensor chosen = learned_.forward(states).gather(1, actions).squeeze(1);
  optimizer_.zero_grad();
  (-(chosen * returns).mean()).backward();
  optimizer_.step();
  show_weights();
  progress_.update();
}

// ---- The steps that one call, or one batch of calls, makes.

at::Tensor Agent::step(const Observation& o) {
  record(o.places, o.rewards, o.ended);
  updates_.run_if_enough();
  return choose(o.places, o.states);
}

// Sorts by place, so that the result does not depend on the order of the calls in a batch.
at::Tensor Agent::step_in_order(const Observation& o) {
  const at::Tensor order = o.places.argsort();
  const auto sorted = [&](const at::Tensor& rows) { return rows.index_select(0, order); };
  const at::Tensor actions =
      step({sorted(o.places), sorted(o.states), sorted(o.rewards), sorted(o.ended)});
  return torch::empty_like(actions).index_copy_(0, order, actions);
}

// ---- The calls of observers. They are checked before they are joined with others.

at::Tensor Agent::select_action(CallContext& caller, const at::Tensor& places,
                                const at::Tensor& states) {
  check_states(places, states);
  admit(caller.caller(), places);
  return choose(places, states);
}

void Agent::report_reward(CallContext& caller, const at::Tensor& places, const at::Tensor& rewards,
                          const at::Tensor& ended) {
  check_rewards(places, rewards, ended);
  admit(caller.caller(), places);
  record(places, rewards, ended);
  updates_.run_if_enough();
}

at::Tensor Agent::act(CallContext& caller, const Observation& o) {
  admit(caller.caller(), o);
  return step(o);
}

Future<at::Tensor> Agent::act_batched(CallContext& caller, const Observation& o) {
  admit(caller.caller(), o);
  return batched_(o);
}

void Agent::admit(WorkerId caller, const Observation& o) {
  check_rewards(o.places, o.rewards, o.ended);
  check_states(o.places, o.states);
  admit(caller, o.places);
}

void Agent::admit(WorkerId caller, const at::Tensor& places) {
  const std::vector<int64_t> distinct = distinct_places(places);
  MutexLock lock(mutex_);
  trajectories_.admit(caller, distinct);
}

// ---- The agent itself.

Agent::Agent(AgentOptions options, std::function<void(const EpisodeProgress::Now&)> on_update)
    : options_(options),
      progress_(std::move(on_update)),
      trajectories_(options.seed),
      optimizer_(learned_.parameters(), torch::optim::AdamOptions(options.learning_rate)),
      updates_({.steps = options.steps_per_update, .own_thread = options.lockstep == 0},
               [this](Episodes episodes) { learn(std::move(episodes)); }),
      batched_([this](const Observation& o) { return lockstep() ? step_in_order(o) : step(o); },
               {.name = "agent",
                .max_size = lockstep() ? options.lockstep : 1024,
                .max_wait = lockstep() ? kUntilFull : kLongestWait,
                // An observer calls again when it has its answer. So wait for all present
                // observers, but not for those that are gone.
                .adaptive = !lockstep(),
                .join = BatchJoin::kConcatenate}) {
  const at::Generator random = at::detail::createCPUGenerator(options.seed);
  const torch::NoGradGuard no_grad;
  const auto learned = learned_.parameters();
  for (size_t i = 0; i < learned.size(); ++i) {
    const double bound = 1 / std::sqrt(static_cast<double>(i < 2 ? CartPole::kState : kHidden));
    learned[i].uniform_(-bound, bound, random);  // the initial values of torch::nn::Linear
  }
  show_weights();
}

Agent::~Agent() = default;

void Agent::show_weights() {
  const torch::NoGradGuard no_grad;
  const auto learned = learned_.parameters();
  MutexLock lock(mutex_);
  const auto acting = acting_.parameters();
  for (size_t i = 0; i < learned.size(); ++i) acting[i].copy_(learned[i]);
}

at::Tensor Agent::evaluate(const at::Tensor& states) {
  const torch::NoGradGuard no_graph;
  MutexLock lock(mutex_);
  return acting_.forward(states);
}

}  // namespace weft::examples
