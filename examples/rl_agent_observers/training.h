// The agent's main thread: it keeps every live observer at work until the task is solved.
//
// Thread safety: one thread.
// Lifetime: the worker outlives it.
// Blocking: run, until its time is over.
// Errors: RpcError, std::runtime_error (not solved in time; an observer of the lockstep is gone).
#pragma once

#include <cstdint>
#include <map>

#include "weft/examples/rl_agent_observers/agent.h"
#include "weft/examples/rl_agent_observers/observer.h"
#include "weft/rref/rref.h"
#include "weft/worker/worker.h"

namespace weft::examples {

struct TrainingOptions {
  CallShape shape = CallShape::kBatched;
  int64_t environments = 1;  // of each observer
  int64_t steps = 500;       // of each environment in one call of Observer::run
  AgentOptions agent;
  bool deterministic = false;
  int64_t seconds = 300;
  int64_t updates = 0;         // 0: until the task is solved
  int64_t grace_seconds = 30;  // for runs that are not back when enough was learned
};

class Training {
 public:
  Training(Worker& worker, const TrainingOptions& options);

  // Returns when enough was learned and all runs are back. Runs that are not back when the grace or
  // the whole time is over are cancelled. After SIGTERM (worker/stop_request.h) it cancels all runs
  // within a second, and returns false if not enough was learned.
  bool run();

 private:
  struct Member {
    WorkerInfo info;
    RRef<Observer> observer;
    Future<at::Tensor> run = {};  // invalid while the observer is idle
  };

  bool enough() const;
  void handle(const MemberEvent& event);
  void add(const WorkerInfo& info);
  void miss(const WorkerInfo& info, const absl::Status& why);
  // Gives a run to each idle observer. In lockstep all of them begin together.
  void send_out();
  void take_back_runs();
  void take_back(Member& member);
  void say_result() const;

  Worker& worker_;
  const TrainingOptions options_;
  const MemberEvents events_;  // a run that completes wakes its reader too
  const RRef<Agent> agent_;
  Agent& local_;
  std::map<WorkerId, Member> members_;  // by id: in the order of their ranks
  std::map<WorkerId, int> failures_;
  int64_t next_place_ = 0;
  size_t running_ = 0;
};

}  // namespace weft::examples
