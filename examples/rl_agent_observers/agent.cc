#include "weft/examples/rl_agent_observers/agent.h"

#include <algorithm>
#include <cmath>
#include <utility>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "weft/async/error_text.h"
#include "weft/base/rpc_error.h"
#include "weft/examples/rl_agent_observers/cart_pole.h"

namespace weft::examples {
namespace {

constexpr int64_t kHidden = 128;
constexpr size_t kMostPlaces = 1 << 16;
constexpr std::chrono::microseconds kLongestWait{1000};  // of a call for other calls to join
// Limits for what piles up if an environment never completes an episode, or if observers are faster
// than learning. The rest is dropped.
constexpr size_t kLongestEpisode = 10 * CartPole::kLongest;
constexpr size_t kMostUpdatesWaiting = 20;

// For states and rewards. With larger numbers returns and weights would not stay finite.
constexpr float kLargestNumber = 1e6;

[[noreturn]] void refuse(absl::Status status) { throw RpcError(std::move(status)); }

void check(const char* what, const at::Tensor& tensor, at::ScalarType type, at::IntArrayRef shape) {
  if (tensor.defined() && tensor.scalar_type() == type && tensor.sizes() == shape &&
      tensor.is_contiguous() && tensor.is_cpu()) {
    if (type != at::kFloat) return;
    const float* number = tensor.const_data_ptr<float>();
    const auto* wrong = std::find_if_not(  // NaN must be found too, so not `>`
        number, number + tensor.numel(), [](float x) { return std::abs(x) <= kLargestNumber; });
    if (wrong == number + tensor.numel()) return;
    refuse(absl::InvalidArgumentError(absl::StrCat("an observer's ", what, " hold ", *wrong,
                                                   "; numbers up to ", kLargestNumber, " can be")));
  }
  const std::string got =
      tensor.defined()
          ? absl::StrCat("[", absl::StrJoin(tensor.sizes(), ", "), "] of ",
                         c10::toString(tensor.scalar_type()), " on ", tensor.device().str(),
                         tensor.is_contiguous() ? "" : ", with gaps")
          : "no tensor";
  refuse(absl::InvalidArgumentError(
      absl::StrCat("an observer's ", what, " must be [", absl::StrJoin(shape, ", "), "] of ",
                   c10::toString(type), " on cpu, but it sent ", got)));
}

int64_t rows_of(const at::Tensor& places) {
  const int64_t rows = places.defined() && places.dim() > 0 ? places.size(0) : 0;
  check("places", places, at::kLong, {rows});
  return rows;
}
void check_states(const at::Tensor& places, const at::Tensor& states) {
  check("states", states, at::kFloat, {rows_of(places), CartPole::kState});
}
void check_rewards(const at::Tensor& places, const at::Tensor& rewards, const at::Tensor& ended) {
  check("rewards", rewards, at::kFloat, {rows_of(places)});
  check("ended", ended, at::kBool, {rows_of(places)});
}

}  // namespace

Policy::Policy() {
  hidden_ = register_module("hidden", torch::nn::Linear(CartPole::kState, kHidden));
  output_ = register_module("output", torch::nn::Linear(kHidden, CartPole::kActions));
}

at::Tensor Policy::forward(const at::Tensor& states) {
  return torch::log_softmax(output_(torch::relu(hidden_(states))), 1);
}

Agent::Agent(AgentOptions options, std::function<void(const EpisodeProgress::Now&)> on_update)
    : options_(options),
      progress_(std::move(on_update)),
      optimizer_(learned_.parameters(), torch::optim::AdamOptions(options.learning_rate)),
      batched_([this](const Observation& observation) { return act_together(observation); },
               {.name = "agent",
                .max_size = options.lockstep > 0 ? options.lockstep : 1024,
                .max_wait = options.lockstep > 0 ? kUntilFull : kLongestWait,
                // An observer calls again when it has its answer. So wait for all present
                // observers, but not for those that are gone.
                .adaptive = options.lockstep == 0,
                .join = BatchJoin::kConcatenate}) {
  const at::Generator random = at::detail::createCPUGenerator(options.seed);
  const torch::NoGradGuard no_grad;
  const auto acting = acting_.parameters();
  const auto learned = learned_.parameters();
  for (size_t i = 0; i < learned.size(); ++i) {
    const double bound = 1 / std::sqrt(static_cast<double>(i < 2 ? CartPole::kState : kHidden));
    learned[i].uniform_(-bound, bound, random);  // the initial values of torch::nn::Linear
    acting[i].copy_(learned[i]);
  }
}

Agent::~Agent() = default;

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
  learn_if_enough();
}

at::Tensor Agent::act(CallContext& caller, const Observation& o) {
  check_rewards(o.places, o.rewards, o.ended);
  check_states(o.places, o.states);
  admit(caller.caller(), o.places);
  record(o.places, o.rewards, o.ended);
  learn_if_enough();
  return choose(o.places, o.states);
}

Future<at::Tensor> Agent::act_batched(CallContext& caller, const Observation& o) {
  // Check before the call is joined with others, so that a mistake reaches only this observer.
  check_rewards(o.places, o.rewards, o.ended);
  check_states(o.places, o.states);
  admit(caller.caller(), o.places);
  return batched_(o);
}

at::Tensor Agent::act_together(const Observation& o) {
  if (options_.lockstep == 0) {
    record(o.places, o.rewards, o.ended);
    learn_if_enough();
    return choose(o.places, o.states);
  }
  // Sort by place, so that the result does not depend on the order of the calls.
  const at::Tensor order = o.places.argsort();
  const auto sorted = [&](const at::Tensor& rows) { return rows.index_select(0, order); };
  const at::Tensor places = sorted(o.places);
  record(places, sorted(o.rewards), sorted(o.ended));
  learn_if_enough();
  const at::Tensor actions = choose(places, sorted(o.states));
  return torch::empty_like(actions).index_copy_(0, order, actions);
}

void Agent::admit(WorkerId caller, const at::Tensor& places) {
  const auto* place = places.const_data_ptr<int64_t>();
  std::vector<int64_t> sorted(place, place + places.size(0));
  std::sort(sorted.begin(), sorted.end());
  if (const auto twice = std::adjacent_find(sorted.begin(), sorted.end()); twice != sorted.end()) {
    refuse(absl::InvalidArgumentError(
        absl::StrCat("an observer's places hold ", *twice, " more than once")));
  }
  MutexLock lock(mutex_);
  std::vector<int64_t> added;
  for (const int64_t one : sorted) {
    const auto found = trajectories_.find(one);
    if (found == trajectories_.end()) {
      added.push_back(one);
    } else if (found->second.observer != caller) {
      refuse(absl::PermissionDeniedError(absl::StrCat("place ", one, " is another observer's")));
    }
  }
  if (trajectories_.size() + added.size() > kMostPlaces) {
    refuse(absl::ResourceExhaustedError(absl::StrCat("the agent knows ", trajectories_.size(),
                                                     " places; ", kMostPlaces, " is the limit")));
  }
  for (const int64_t one : added) {
    Trajectory& trajectory = trajectories_[one];
    trajectory.observer = caller;
    trajectory.random.seed(
        static_cast<uint32_t>(options_.seed * 1'000'003 + static_cast<uint64_t>(one)));
  }
}

Agent::Choices Agent::choices() const {
  MutexLock lock(mutex_);
  return choices_;
}

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
    const auto found = trajectories_.find(place[i]);
    if (found == trajectories_.end()) continue;  // forgotten meanwhile: no caller waits
    Trajectory& trajectory = found->second;
    if (trajectory.actions.size() > trajectory.rewards.size()) {
      trajectory.actions.pop_back();
      trajectory.states.resize(trajectory.states.size() - CartPole::kState);
    }
    action[i] = std::generate_canonical<float, 24>(trajectory.random) >= left[2 * i] ? 1 : 0;
    trajectory.states.insert(trajectory.states.end(), state + CartPole::kState * i,
                             state + CartPole::kState * (i + 1));
    trajectory.actions.push_back(action[i]);
  }
  ++choices_.count;
  choices_.time += std::chrono::steady_clock::now() - begun;
  return actions;
}

void Agent::record(const at::Tensor& places, const at::Tensor& rewards, const at::Tensor& ended) {
  const auto* place = places.const_data_ptr<int64_t>();
  MutexLock lock(mutex_);
  for (int64_t i = 0; i < places.size(0); ++i) {
    const auto found = trajectories_.find(place[i]);
    if (found == trajectories_.end()) continue;
    Trajectory& trajectory = found->second;
    // The first observation of an environment has no action before it.
    if (trajectory.rewards.size() == trajectory.actions.size()) continue;
    trajectory.rewards.push_back(rewards.const_data_ptr<float>()[i]);
    if (ended.const_data_ptr<bool>()[i] || trajectory.rewards.size() >= kLongestEpisode) {
      finish(trajectory);
    }
  }
}

void Agent::finish(Trajectory& trajectory) {
  const size_t steps = trajectory.rewards.size();
  std::vector<float> returns(steps);
  double after = 0;
  for (size_t i = steps; i-- > 0;) {
    after = trajectory.rewards[i] + options_.gamma * after;
    returns[i] = static_cast<float>(after);
  }
  progress_.episode(static_cast<int64_t>(steps));
  const bool room = finished_.actions.size() < kMostUpdatesWaiting * options_.steps_per_update;
  const auto append = [room](auto& to, auto& from) {
    if (room) to.insert(to.end(), from.begin(), from.end());
    from.clear();
  };
  append(finished_.states, trajectory.states);
  append(finished_.actions, trajectory.actions);
  append(finished_.returns, returns);
  trajectory.rewards.clear();
}

void Agent::forget(WorkerId observer) {
  MutexLock lock(mutex_);
  std::erase_if(trajectories_, [&](const auto& one) { return one.second.observer == observer; });
}

at::Tensor Agent::evaluate(const at::Tensor& states) {
  const torch::NoGradGuard no_graph;
  MutexLock lock(mutex_);
  return acting_.forward(states);
}

absl::Status Agent::status() const {
  MutexLock lock(mutex_);
  return status_;
}

void Agent::learn_if_enough() {
  Episodes episodes;
  {
    MutexLock lock(mutex_);
    if (learning_ || !status_.ok() || finished_.actions.size() < options_.steps_per_update) return;
    learning_ = true;
    std::swap(episodes, finished_);
  }
  const auto task = [this](Episodes& finished) {
    absl::Status status;
    try {
      learn(std::move(finished));
    } catch (const std::exception& error) {
      status = absl::InternalError(
          absl::StrCat("the agent cannot learn: ", without_stack(error.what())));
    }
    MutexLock lock(mutex_);
    learning_ = false;
    status_ = status;
  };
  if (options_.lockstep > 0) {
    task(episodes);
  } else {
    learner_.run([task, episodes = std::move(episodes)]() mutable { task(episodes); });
  }
}

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
  {
    const torch::NoGradGuard no_grad;
    const auto learned = learned_.parameters();
    MutexLock lock(mutex_);
    const auto acting = acting_.parameters();
    for (size_t i = 0; i < learned.size(); ++i) acting[i].copy_(learned[i]);
  }
  progress_.update();
}

}  // namespace weft::examples
