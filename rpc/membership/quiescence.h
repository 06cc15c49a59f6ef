// Runs the graceful shutdown of a group for one worker.
//
// It checks whether this worker is idle, sends and receives the posts of QuiescenceCore, and
// completes a future when each phase is over.
//
// Thread safety: all methods may be called from any thread.
// Lifetime: the agent, the executor and the clock must live until `stop` has returned.
// Blocking: only `stop`, for a timer that runs. The futures have no executor of their own.
// Protocol: docs/membership.md, "Leaving".
#pragma once

#include <memory>
#include <vector>

#include "weft/async/executor.h"
#include "weft/async/future.h"
#include "weft/base/clock.h"
#include "weft/base/mutex.h"
#include "weft/rpc/membership/internal/quiescence_core.h"
#include "weft/rpc/session/agent.h"

namespace weft::rpc_internal {

class Quiescence {
 public:
  // `members`: the workers that shut down together. `alone`: this worker leaves by itself, as in a
  // dynamic group.
  Quiescence(Agent& agent, Executor& executor, Clock& clock, const std::vector<WorkerInfo>& members,
             bool alone = false);
  ~Quiescence();
  Quiescence(const Quiescence&) = delete;
  Quiescence& operator=(const Quiescence&) = delete;

  // Registers with the agent. Call it once, before the agent starts.
  void attach();

  // Takes a post about the shutdown of the group.
  void receive(WorkerId from, const wire::MembershipPost& post);
  // This worker has joined the group. No effect for a known member.
  void joined(WorkerId worker);
  // This worker is dead or has left. Call it for workers that the agent may never have known; the
  // agent reports the others itself.
  void gone(WorkerId worker);
  // False: the shutdown has gone too far to admit joiners.
  bool admits() const ABSL_LOCKS_EXCLUDED(mutex_);

  // This worker enters the shutdown. `timeout` counts from when the last live worker has entered.
  // Idempotent.
  void enter(Timeout timeout);
  // Call it after `calls_drained`, when this worker has dropped its references. The messages that
  // this causes are with the agent by then, or tasks of the executor will give them to it.
  void references_dropped();

  // Completes when every other live worker has entered. From this call on, `append_awaited` names
  // the workers that are missing.
  Future<void> others_entered() ABSL_LOCKS_EXCLUDED(mutex_);
  // Appends the workers that this one waits for because they have not entered. The caller must keep
  // leases with them: a worker that hangs never enters.
  void append_awaited(std::vector<WorkerId>& out) const ABSL_LOCKS_EXCLUDED(mutex_);
  // Completes when phase 1 is over, or the whole shutdown.
  Future<void> calls_drained() const { return calls_drained_.future(); }
  // Completes when the shutdown is over. DeadlineExceeded: the error names the workers that still
  // had work, and the work of each.
  Future<void> ended() const { return ended_.future(); }

  // No timer runs afterwards. Futures that are not complete fail with Cancelled. Idempotent.
  void stop();

 private:
  struct Gate;

  // Steps the core under the lock, then acts on the result without it.
  template <class Event>
  void step(Event event) ABSL_LOCKS_EXCLUDED(mutex_);
  void tick() ABSL_LOCKS_EXCLUDED(mutex_);
  void arm(Nanoseconds delay) ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);
  // Returns the counters of one moment at which this worker was idle; nullopt if it was not idle.
  std::optional<std::vector<PeerTraffic>> look() const;
  // Describes the work that keeps this worker from being idle. Empty: it looks idle after all, and
  // the next tick reports that.
  std::string work() const;
  absl::Status outcome() const ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);

  Agent& agent_;
  Executor& executor_;
  Clock& clock_;
  const bool alone_;
  const std::shared_ptr<Gate> gate_;  // shared with timers, which may fire after `stop`
  Promise<void> others_entered_{nullptr};
  Promise<void> calls_drained_{nullptr};
  Promise<void> ended_{nullptr};
  mutable Mutex mutex_;
  QuiescenceCore core_ ABSL_GUARDED_BY(mutex_);
  bool waits_ ABSL_GUARDED_BY(mutex_) = false;  // for the others; it need not have entered itself
  TimerId timer_ ABSL_GUARDED_BY(mutex_);
  Nanoseconds interval_ ABSL_GUARDED_BY(mutex_){0};
  uint64_t seen_activity_ ABSL_GUARDED_BY(mutex_) = 0;
};

}  // namespace weft::rpc_internal
