// The agent: has the policy, chooses actions for all observers and learns from their episodes
// (REINFORCE: Williams, "Simple statistical gradient-following algorithms", 1992).
//
// Each environment of each observer is a *place*, a number that is its own in the whole group.
// Where arrays are named [n], row i of each is about the same place.
//
// Thread safety: all methods may be called from any thread. Learning has a thread of its own.
// Errors: of the observer whose call it is, alone: InvalidArgument (a wrong shape, a place twice, a
// number beyond a million or none), PermissionDenied (another observer's place), ResourceExhausted
// (too many places).
#pragma once

#include <chrono>
#include <cstdint>
#include <functional>
#include <map>
#include <random>
#include <vector>

#include <torch/torch.h>

#include "weft/async/future.h"
#include "weft/async/serial_thread.h"
#include "weft/base/mutex.h"
#include "weft/examples/rl_agent_observers/progress_of_episodes.h"
#include "weft/rpc/batching/batching.h"
#include "weft/rpc/class.h"

namespace weft::examples {

// What happened in each environment since its last action, and what is seen now.
struct Observation {
  at::Tensor places;   // [n] int64
  at::Tensor states;   // [n, 4] float
  at::Tensor rewards;  // [n] float, for the action before; of an environment's first step: unused
  at::Tensor ended;    // [n] bool: that action ended an episode, and the state begins another
  friend auto weft_fields(Observation& o) {
    return std::tie(o.places, o.states, o.rewards, o.ended);
  }
};

struct Policy : torch::nn::Module {
  Policy();
  at::Tensor forward(const at::Tensor& states);  // [n, 4] to log-probabilities [n, 2]

 private:
  torch::nn::Linear hidden_ = nullptr, output_ = nullptr;
};

struct AgentOptions {
  uint64_t seed = 543;
  double learning_rate = 1e-2;
  double gamma = 0.99;
  size_t steps_per_update = 2000;  // of finished episodes
  // Observers in lockstep: a batch is one call of each, updates happen between batches, and the
  // curve is the same each time. 0: batches as calls come, updates beside them.
  size_t lockstep = 0;
};

class Agent {
 public:
  explicit Agent(AgentOptions options,
                 std::function<void(const EpisodeProgress::Now&)> on_update = {});
  ~Agent();

  // Two calls a step, as in the tutorial that this follows: int64 [n] actions for the states, then
  // what they earned. An action whose reward never comes is forgotten.
  at::Tensor select_action(CallContext& caller, const at::Tensor& places, const at::Tensor& states);
  void report_reward(CallContext& caller, const at::Tensor& places, const at::Tensor& rewards,
                     const at::Tensor& ended);
  // One call a step: what the last actions earned, and the next ones.
  at::Tensor act(CallContext& caller, const Observation& observation);
  // The same, together with whoever else calls at this time.
  Future<at::Tensor> act_batched(CallContext& caller, const Observation& observation);

  // An observer that is gone: its places, and what it has gone through and not finished.
  void forget(WorkerId observer);

  // What the policy thinks of these states now: [n, 4] to log-probabilities [n, 2].
  at::Tensor evaluate(const at::Tensor& states);

  const EpisodeProgress& progress() const { return progress_; }
  BatchStats batches() const { return batched_.stats(); }
  // How often actions were chosen, for one observer or for a batch of them, and how long that took.
  struct Choices {
    uint64_t count = 0;
    std::chrono::nanoseconds time{};
  };
  Choices choices() const ABSL_LOCKS_EXCLUDED(mutex_);
  // Why there is no more learning; OK as a rule.
  absl::Status status() const;

 private:
  // Of one environment, since its episode began. Of the last action the reward may be missing.
  struct Trajectory {
    WorkerId observer;
    std::ranlux24_base random;
    std::vector<float> states;  // 4 for each action
    std::vector<int64_t> actions;
    std::vector<float> rewards;
  };
  struct Episodes {  // that are finished, one after the other
    std::vector<float> states;
    std::vector<int64_t> actions;
    std::vector<float> returns;  // discounted sums of the rewards that came after
  };

  // Makes places for the caller, or throws.
  void admit(WorkerId caller, const at::Tensor& places) ABSL_LOCKS_EXCLUDED(mutex_);
  at::Tensor choose(const at::Tensor& places, const at::Tensor& states) ABSL_LOCKS_EXCLUDED(mutex_);
  void record(const at::Tensor& places, const at::Tensor& rewards, const at::Tensor& ended)
      ABSL_LOCKS_EXCLUDED(mutex_);
  at::Tensor act_together(const Observation& observation);
  void finish(Trajectory& trajectory) ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);
  void learn_if_enough() ABSL_LOCKS_EXCLUDED(mutex_);
  void learn(Episodes episodes) ABSL_LOCKS_EXCLUDED(mutex_);

  const AgentOptions options_;
  EpisodeProgress progress_;
  mutable Mutex mutex_;  // held by an action and by the copying of new weights, not by learning
  Policy acting_ ABSL_GUARDED_BY(mutex_);
  std::map<int64_t, Trajectory> trajectories_ ABSL_GUARDED_BY(mutex_);  // by place
  Episodes finished_ ABSL_GUARDED_BY(mutex_);
  Choices choices_ ABSL_GUARDED_BY(mutex_);
  bool learning_ ABSL_GUARDED_BY(mutex_) = false;
  absl::Status status_ ABSL_GUARDED_BY(mutex_);

  Policy learned_;  // one update at a time
  torch::optim::Adam optimizer_;
  SerialThread learner_;
  Batcher<at::Tensor(Observation)> batched_;
};

WEFT_REGISTER_CLASS(Agent, &Agent::select_action, &Agent::report_reward, &Agent::act,
                    &Agent::act_batched);

}  // namespace weft::examples
