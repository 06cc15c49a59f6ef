// Drives the shutdown protocol of quiescence_core.h for one worker: looks whether it is idle, sends
// and receives its messages, and says when each phase has ended.
//
// Thread safety: all methods may be called from any thread.
// Lifetime: agent, executor and clock outlive it, up to `stop`.
// Blocking: none; the futures are for whoever wants to wait. They have no executor of their own.
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
  // `members`: the group that ends together; this worker alone in a dynamic group.
  Quiescence(Agent& agent, Executor& executor, Clock& clock, const std::vector<WorkerInfo>& members,
             bool alone = false);
  ~Quiescence();
  Quiescence(const Quiescence&) = delete;
  Quiescence& operator=(const Quiescence&) = delete;

  // Listens to the agent. Once, before the agent starts.
  void attach();

  // A post about the end of the group.
  void receive(WorkerId from, const wire::MembershipPost& post);
  // Somebody has joined; harmless for known members.
  void joined(WorkerId worker);
  // It has ended. Only to be said of one that the agent never knew; of the others the agent tells.
  void gone(WorkerId worker);
  // False: the end has come too far for joiners.
  bool admits() const ABSL_LOCKS_EXCLUDED(mutex_);

  // This worker wants to end, and waits `timeout` from when the last live worker wants to.
  // Idempotent.
  void enter(Timeout timeout);
  // After `calls_drained`: what dropping the references sends has been handed to the agent, or will
  // be by tasks of the executor.
  void references_dropped();

  // Every other live worker has entered or is gone. From now on this worker waits for them.
  Future<void> others_entered() ABSL_LOCKS_EXCLUDED(mutex_);
  // Appends whom this worker waits for to enter: somebody must look after them, for one that hangs
  // never will.
  void append_awaited(std::vector<WorkerId>& out) const ABSL_LOCKS_EXCLUDED(mutex_);
  // Phase 1 has ended, or everything has.
  Future<void> calls_drained() const { return calls_drained_.future(); }
  // DeadlineExceeded names the workers that did not become quiet, and what each was at.
  Future<void> ended() const { return ended_.future(); }

  // No timer runs afterwards; futures that are not complete become Cancelled. Idempotent.
  void stop();

 private:
  struct Gate;

  // Steps the core under the lock, then does what it asks for.
  template <class Event>
  void step(Event event) ABSL_LOCKS_EXCLUDED(mutex_);
  void tick() ABSL_LOCKS_EXCLUDED(mutex_);
  void arm(Nanoseconds delay) ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);
  // The counters of a moment at which this worker was idle; nothing if it was not.
  std::optional<std::vector<PeerTraffic>> look() const;
  // What keeps this worker from being idle, in words.
  std::string work() const;
  absl::Status death_record() const ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);

  Agent& agent_;
  Executor& executor_;
  Clock& clock_;
  const bool alone_;
  const std::shared_ptr<Gate> gate_;  // shared with timers, which may fire after the end
  Promise<void> others_entered_{nullptr};
  Promise<void> calls_drained_{nullptr};
  Promise<void> ended_{nullptr};
  mutable Mutex mutex_;
  QuiescenceCore core_ ABSL_GUARDED_BY(mutex_);
  bool waits_ ABSL_GUARDED_BY(mutex_) = false;  // without having entered
  TimerId timer_ ABSL_GUARDED_BY(mutex_);
  Nanoseconds interval_ ABSL_GUARDED_BY(mutex_){0};
  uint64_t seen_activity_ ABSL_GUARDED_BY(mutex_) = 0;
};

}  // namespace weft::rpc_internal
