#include "weft/examples/rl_agent_observers/trajectories.h"

#include "absl/strings/str_cat.h"
#include "weft/base/rpc_error.h"
#include "weft/examples/rl_agent_observers/cart_pole.h"

namespace weft::examples {
namespace {

constexpr size_t kMostPlaces = 1 << 16;
// An environment may never complete an episode.
constexpr size_t kLongestEpisode = 10 * CartPole::kLongest;

}  // namespace

float Trajectory::draw() { return std::generate_canonical<float, 24>(random); }

void Trajectory::add_action(const float* state, int64_t action) {
  if (actions.size() > rewards.size()) {
    actions.pop_back();
    states.resize(states.size() - CartPole::kState);
  }
  states.insert(states.end(), state, state + CartPole::kState);
  actions.push_back(action);
}

bool Trajectory::add_reward(float reward) {
  if (rewards.size() == actions.size()) return false;
  rewards.push_back(reward);
  return true;
}

bool Trajectory::too_long() const { return rewards.size() >= kLongestEpisode; }

void Episodes::take(Trajectory& finished, const std::vector<float>& discounted, bool room) {
  if (room) {
    states.insert(states.end(), finished.states.begin(), finished.states.end());
    actions.insert(actions.end(), finished.actions.begin(), finished.actions.end());
    returns.insert(returns.end(), discounted.begin(), discounted.end());
  }
  finished.states.clear();
  finished.actions.clear();
  finished.rewards.clear();
}

void Trajectories::admit(WorkerId observer, const std::vector<int64_t>& places) {
  std::vector<int64_t> added;
  for (const int64_t place : places) {
    const auto found = by_place_.find(place);
    if (found == by_place_.end()) {
      added.push_back(place);
    } else if (found->second.observer != observer) {
      throw RpcError(
          absl::PermissionDeniedError(absl::StrCat("place ", place, " is another observer's")));
    }
  }
  if (by_place_.size() + added.size() > kMostPlaces) {
    throw RpcError(absl::ResourceExhaustedError(absl::StrCat(
        "the agent knows ", by_place_.size(), " places; ", kMostPlaces, " is the limit")));
  }
  for (const int64_t place : added) {
    Trajectory& trajectory = by_place_[place];
    trajectory.observer = observer;
    trajectory.random.seed(static_cast<uint32_t>(seed_ * 1'000'003 + static_cast<uint64_t>(place)));
  }
}

Trajectory* Trajectories::find(int64_t place) {
  const auto found = by_place_.find(place);
  return found == by_place_.end() ? nullptr : &found->second;
}

void Trajectories::forget(WorkerId observer) {
  std::erase_if(by_place_, [&](const auto& one) { return one.second.observer == observer; });
}

}  // namespace weft::examples
