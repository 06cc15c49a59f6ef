// Runs the membership protocol for one worker.
//
// It sends heartbeats, checks which peers are silent, asks the group's list of death records, and
// admits joiners. The logic is in MembershipCore; this class is its driver.
//
// Thread safety: all methods may be called from any thread.
// Lifetime: the agent, the quiescence driver, the clock and the store thread must live until `stop`
// has returned. The tasks that ask the list share it.
// Blocking: only `stop`, and the tasks of `store_thread`.
// Protocol: docs/membership.md.
#pragma once

#include <functional>
#include <memory>
#include <optional>
#include <set>
#include <string_view>
#include <vector>

#include "weft/async/executor.h"
#include "weft/async/future.h"
#include "weft/async/gate.h"
#include "weft/base/clock.h"
#include "weft/base/mutex.h"
#include "weft/rpc/membership/internal/member_watch.h"
#include "weft/rpc/membership/internal/membership_core.h"
#include "weft/rpc/membership/member_events.h"
#include "weft/rpc/membership/processor_waits.h"
#include "weft/rpc/membership/quiescence.h"
#include "weft/rpc/session/agent.h"

namespace weft::rpc_internal {

class Membership {
 public:
  // Appends the workers with which a room above has shared state (references, contexts).
  using Ties = std::function<void(std::vector<WorkerId>& workers)>;
  using Listener = std::function<void(const WorkerInfo& worker, MemberChange change,
                                      const absl::Status& reason)>;
  struct Options {
    LeaseOptions lease;
    uint32_t world_size = 0;  // of a static group; 0: a dynamic group, of any size
    Nanoseconds store_timeout = std::chrono::milliseconds(500);
    // Returns the record of an incarnation that others name, or that a dialler claims to be;
    // nullopt if it is not in the group any more. Tasks of the store thread call it. It must not be
    // null.
    std::function<absl::StatusOr<std::optional<WorkerInfo>>(WorkerId incarnation)> find_incarnation;
    // Tells how long workers on this machine waited for a processor. Null: that is not asked.
    // Copies of these options share it.
    std::shared_ptr<ProcessorWaits> processor_waits;
    // Runs on the thread that noticed the change, without locks.
    Listener listener;
  };

  // Only tasks of `store_thread` use `list`, and it must run them one at a time. If `list` is null,
  // a suspicion parts only the pair: this worker and the one that it suspects.
  Membership(Agent& agent, Quiescence& quiescence, Clock& clock, std::shared_ptr<DeathRecords> list,
             Executor& store_thread, Options options);
  ~Membership();
  Membership(const Membership&) = delete;
  Membership& operator=(const Membership&) = delete;

  // Call it before the agent starts.
  void add_ties(Ties ties) { ties_.push_back(std::move(ties)); }
  // Call it before the agent starts. `joiner`: the members do not know this worker yet, so it
  // announces itself to them.
  void attach(const std::vector<WorkerInfo>& members, bool joiner) ABSL_LOCKS_EXCLUDED(mutex_);

  // Begins to check the peers, once per heartbeat interval. Call it after the agent has started.
  // `death_records`: what the list held when this worker joined.
  void start(const std::vector<DeathRecord>& death_records) ABSL_LOCKS_EXCLUDED(mutex_);
  // For a joiner: completes when each member that was given to `attach` knows the joiner's name,
  // has left or is dead. PermissionDenied: one of them refuses this worker.
  Future<void> joined() const { return joined_.future(); }
  // Worker::wait_for_async, wait_until_gone_async and member_events. The futures have no executor
  // of their own.
  Future<WorkerInfo> when_live(std::string_view name, Timeout timeout) {
    return watch_.when_live(name, timeout);
  }
  Future<void> when_gone(std::string_view name, Timeout timeout) {
    return watch_.when_gone(name, timeout);
  }
  MemberEvents events() { return watch_.events(); }

  // OK until this worker is fenced; then the error names the worker that declared it dead, and the
  // reason.
  absl::Status standing() const ABSL_LOCKS_EXCLUDED(mutex_);
  size_t leases() const ABSL_LOCKS_EXCLUDED(mutex_);

  // Waits for callbacks that run; none starts afterwards. Idempotent.
  void stop() ABSL_LOCKS_EXCLUDED(mutex_);

 private:
  template <class Event>
  void step(Event event) ABSL_LOCKS_EXCLUDED(mutex_);
  void act(MembershipActions& actions);
  void ask(const MembershipActions::Question& question);
  void report_suspect(WorkerId worker) ABSL_LOCKS_EXCLUDED(mutex_);
  using Record = absl::StatusOr<std::optional<WorkerInfo>>;
  // `answered` runs with the record when it is read, and with an error when the time limit has
  // passed. So it may run twice.
  void look_up(WorkerId incarnation,
               std::function<void(Membership& driver, const Record&)> answered);
  void on_compared(const WorkerInfo& claimant, const Record& record);
  void on_found(WorkerId unknown, const Record& record);
  void take_in(WorkerId joiner);
  absl::Status admit(const WorkerInfo& joiner);
  void on_opened(WorkerId peer);
  void on_joined(WorkerId joiner);
  void on_gone(WorkerId peer, const absl::Status& reason, bool left);
  void on_suspicion(WorkerId peer, const absl::Status& reason);
  // A joiner first waits to meet every member, then for every member to welcome it. These end the
  // wait for one member in the first and in the second phase.
  void met(WorkerId peer) ABSL_LOCKS_EXCLUDED(mutex_);
  void welcomed(WorkerId by) ABSL_LOCKS_EXCLUDED(mutex_);
  void tick() ABSL_LOCKS_EXCLUDED(mutex_);
  std::vector<MembershipCore::Look> look(const std::vector<WorkerId>& tied)
      ABSL_LOCKS_EXCLUDED(mutex_);
  void say_lag() ABSL_LOCKS_EXCLUDED(mutex_);
  Nanoseconds store_timeout() const ABSL_LOCKS_EXCLUDED(mutex_);
  void arm() ABSL_LOCKS_EXCLUDED(mutex_);

  Agent& agent_;
  Quiescence& quiescence_;
  Clock& clock_;
  const std::shared_ptr<DeathRecords> list_;  // only tasks of the store thread use it
  Executor& store_thread_;
  const Options options_;
  std::vector<Ties> ties_;
  MemberWatch watch_;
  // Shared with timers and answers, which may come after `stop`.
  const std::shared_ptr<async_internal::Gate<Membership>> gate_;
  Promise<void> joined_{nullptr};
  mutable Mutex mutex_;
  MembershipCore core_ ABSL_GUARDED_BY(mutex_);
  bool joiner_ ABSL_GUARDED_BY(mutex_) = false;
  bool announced_ ABSL_GUARDED_BY(mutex_) = false;        // a joiner has met every member
  std::set<WorkerId> unmet_ ABSL_GUARDED_BY(mutex_);      // no connection yet
  std::set<WorkerId> unwelcome_ ABSL_GUARDED_BY(mutex_);  // have not welcomed this worker yet
  bool stopped_ ABSL_GUARDED_BY(mutex_) = false;
};

}  // namespace weft::rpc_internal
