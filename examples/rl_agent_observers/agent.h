// The agent has the policy, chooses actions for all observers, and learns from their episodes
// (REINFORCE: Williams, "Simple statistical gradient-following algorithms", 1992).
//
// Thread safety: all methods may be called from any thread. Learning has a thread of its own.
// Errors: only the calling observer gets them: those of observation.h and trajectories.h.
#pragma once

#include <chrono>
#include <cstdint>
#include <functional>

#include <torch/torch.h>

#include "weft/async/future.h"
#include "weft/base/mutex.h"
#include "weft/examples/rl_agent_observers/observation.h"
#include "weft/examples/rl_agent_observers/progress_of_episodes.h"
#include "weft/examples/rl_agent_observers/trajectories.h"
#include "weft/examples/rl_agent_observers/updates.h"
#include "weft/rpc/batching/batching.h"
#include "weft/rpc/class.h"

namespace weft::examples {

struct Policy : torch::nn::Module {
  Policy();
  at::Tensor forward(const at::Tensor& states);  // maps [n, 4] to log-probabilities [n, 2]

 private:
  torch::nn::Linear hidden_ = nullptr, output_ = nullptr;
};

struct AgentOptions {
  uint64_t seed = 543;
  double learning_rate = 1e-2;
  double gamma = 0.99;
  size_t steps_per_update = 2000;  // steps of finished episodes
  // The number of observers in lockstep: a batch is one call of each, updates run between batches,
  // and the curve is the same each time. With 0, calls are batched as they arrive, and updates run
  // beside them.
  size_t lockstep = 0;
};

class Agent {
 public:
  explicit Agent(AgentOptions options,
                 std::function<void(const EpisodeProgress::Now&)> on_update = {});
  ~Agent();

  // Two calls per step, as in the tutorial: select_action returns int64 [n] actions for the states,
  // report_reward brings their rewards. If the reward of an action never comes, the action is
  // forgotten.
  at::Tensor select_action(CallContext& caller, const at::Tensor& places, const at::Tensor& states);
  void report_reward(CallContext& caller, const at::Tensor& places, const at::Tensor& rewards,
                     const at::Tensor& ended);
  // One call per step: it brings the rewards of the last actions and returns the next actions.
  at::Tensor act(CallContext& caller, const Observation& observation);
  // The same, batched with the other calls of this time.
  Future<at::Tensor> act_batched(CallContext& caller, const Observation& observation);

  // Call it when an observer is gone. It forgets the observer's places and unfinished episodes.
  void forget(WorkerId observer) ABSL_LOCKS_EXCLUDED(mutex_) {
    MutexLock lock(mutex_);
    trajectories_.forget(observer);
  }

  // Runs the current policy: maps [n, 4] states to log-probabilities [n, 2].
  at::Tensor evaluate(const at::Tensor& states) ABSL_LOCKS_EXCLUDED(mutex_);

  const EpisodeProgress& progress() const { return progress_; }
  BatchStats batches() const { return batched_.stats(); }
  // How often actions were chosen (for one observer or for a batch), and the time that this took.
  struct Choices {
    uint64_t count = 0;
    std::chrono::nanoseconds time{};
  };
  Choices choices() const ABSL_LOCKS_EXCLUDED(mutex_) {
    MutexLock lock(mutex_);
    return choices_;
  }
  // Says why learning has stopped. Normally OK.
  absl::Status status() const { return updates_.status(); }

 private:
  bool lockstep() const { return options_.lockstep > 0; }
  // Assigns new places to the caller. Throws if it may not have them.
  void admit(WorkerId caller, const at::Tensor& places) ABSL_LOCKS_EXCLUDED(mutex_);
  // Checks the observation too.
  void admit(WorkerId caller, const Observation& observation) ABSL_LOCKS_EXCLUDED(mutex_);

  // The method, for rows that were checked.
  at::Tensor choose(const at::Tensor& places, const at::Tensor& states) ABSL_LOCKS_EXCLUDED(mutex_);
  void record(const at::Tensor& places, const at::Tensor& rewards, const at::Tensor& ended)
      ABSL_LOCKS_EXCLUDED(mutex_);
  void finish_episode(Trajectory& trajectory) ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);
  void learn(Episodes episodes) ABSL_LOCKS_EXCLUDED(mutex_);
  void show_weights() ABSL_LOCKS_EXCLUDED(mutex_);  // to the acting policy
  at::Tensor step(const Observation& observation) ABSL_LOCKS_EXCLUDED(mutex_);
  at::Tensor step_in_order(const Observation& observation) ABSL_LOCKS_EXCLUDED(mutex_);

  const AgentOptions options_;
  EpisodeProgress progress_;
  mutable Mutex mutex_;  // held by an action and by the copying of new weights, not by learning
  Policy acting_ ABSL_GUARDED_BY(mutex_);
  Trajectories trajectories_ ABSL_GUARDED_BY(mutex_);
  Choices choices_ ABSL_GUARDED_BY(mutex_);

  Policy learned_;  // one update at a time
  torch::optim::Adam optimizer_;
  Updates updates_;
  Batcher<at::Tensor(Observation)> batched_;
};

WEFT_REGISTER_CLASS(Agent, &Agent::select_action, &Agent::report_reward, &Agent::act,
                    &Agent::act_batched);

}  // namespace weft::examples
