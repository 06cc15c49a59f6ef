// Runs the membership protocol for one worker: it exchanges heartbeats, looks at its peers, asks
// the group's list of death records, and lets joiners in.
//
// Thread safety: all methods may be called from any thread.
// Lifetime: agent and clock outlive it, up to `stop`; the list is shared with the tasks that ask
// it. Blocking: only `stop`, and `store_thread`'s tasks. Protocol: docs/membership.md.
#pragma once

#include <functional>
#include <memory>
#include <optional>
#include <set>
#include <string>
#include <string_view>
#include <vector>

#include "weft/async/executor.h"
#include "weft/async/future.h"
#include "weft/async/gate.h"
#include "weft/base/clock.h"
#include "weft/base/mutex.h"
#include "weft/rpc/membership/internal/membership_core.h"
#include "weft/rpc/membership/processor_waits.h"
#include "weft/rpc/membership/quiescence.h"
#include "weft/rpc/session/agent.h"

namespace weft::rpc_internal {

class Membership {
 public:
  // Appends the workers that a room above shares state with (references, contexts).
  using Ties = std::function<void(std::vector<WorkerId>& workers)>;
  using Listener = std::function<void(const WorkerInfo& worker, MemberChange change,
                                      const absl::Status& reason)>;
  struct Options {
    LeaseOptions lease;
    uint32_t places = 0;  // of a static group; 0: a dynamic one, of any size
    Nanoseconds store_timeout = std::chrono::milliseconds(500);
    // Gives the record of an incarnation that others speak of, or nullopt if the group has none any
    // more. It runs on the store thread. Null: unknown incarnations cannot be looked up, and a
    // worker that says that it has replaced an ended one is taken at its word.
    std::function<absl::StatusOr<std::optional<WorkerInfo>>(WorkerId incarnation)> find_incarnation;
    // The kernel's figures of workers on this machine; may be null. Copies of the options share it.
    std::shared_ptr<ProcessorWaits> processor_waits;
    // Runs where the change was noticed, without locks.
    Listener listener;
  };

  // `list` may be null: then every death record holds for the pair alone. It is asked by tasks of
  // `store_thread`, which runs one at a time.
  Membership(Agent& agent, Quiescence& quiescence, Clock& clock, std::shared_ptr<DeathRecords> list,
             Executor& store_thread, Options options);
  ~Membership();
  Membership(const Membership&) = delete;
  Membership& operator=(const Membership&) = delete;

  // Before the agent starts.
  void add_ties(Ties ties) { ties_.push_back(std::move(ties)); }
  // `joiner`: the others have to learn of this worker.
  void attach(const std::vector<WorkerInfo>& members, bool joiner);

  // After the agent has started: looks at the peers from now on. `death records`: what the list
  // holds.
  void start(const std::vector<DeathRecord>& death_records);
  // For a joiner: every member that was given to `attach` knows its name, has left or is dead.
  // PermissionDenied: one of them refuses this worker.
  Future<void> joined() const { return joined_.future(); }
  // A live member of this name, now or when one joins; DeadlineExceeded if none does in time. The
  // future has no executor of its own.
  Future<WorkerInfo> when_live(std::string_view name, Timeout timeout) ABSL_LOCKS_EXCLUDED(mutex_);

  // OK while the others hold this worker for one of them; else who declared it dead, and why.
  absl::Status standing() const ABSL_LOCKS_EXCLUDED(mutex_);
  size_t leases() const ABSL_LOCKS_EXCLUDED(mutex_);

  // No callback runs afterwards. Idempotent.
  void stop();

 private:
  template <class Event>
  void step(Event event) ABSL_LOCKS_EXCLUDED(mutex_);
  void act(MembershipActions& actions);
  void ask(const MembershipActions::Question& question);
  void report_suspect(WorkerId worker) ABSL_LOCKS_EXCLUDED(mutex_);
  using Record = absl::StatusOr<std::optional<WorkerInfo>>;
  // `answered` runs with the record once it is read, and once the time limit has passed.
  void look_up(WorkerId incarnation,
               std::function<void(Membership& driver, const Record&)> answered);
  void on_compared(const WorkerInfo& claimant, const Record& record);
  void on_found(WorkerId unknown, const Record& record);
  void take_in(WorkerId joiner);
  absl::Status admit(const WorkerInfo& joiner);
  std::optional<WorkerInfo> live_member(std::string_view name) const;
  void tell_awaiting() ABSL_LOCKS_EXCLUDED(mutex_);
  void fail_awaiting(const absl::Status& status) ABSL_LOCKS_EXCLUDED(mutex_);
  void on_opened(WorkerId peer);
  void on_joined(WorkerId joiner);
  void on_gone(WorkerId peer, const absl::Status& reason, bool left);
  void on_suspicion(WorkerId peer, const absl::Status& reason);
  // A joiner does not wait for this member any more, in the stage that it is in.
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
  const std::shared_ptr<DeathRecords> list_;  // the store thread's; shared with its tasks
  Executor& store_thread_;
  const Options options_;
  std::vector<Ties> ties_;
  // Shared with timers and answers, which may come after the end.
  const std::shared_ptr<async_internal::Gate<Membership>> gate_;
  Promise<void> joined_{nullptr};
  mutable Mutex mutex_;
  MembershipCore core_ ABSL_GUARDED_BY(mutex_);
  bool joiner_ ABSL_GUARDED_BY(mutex_) = false;
  bool announced_ ABSL_GUARDED_BY(mutex_) = false;        // a joiner has met everybody
  std::set<WorkerId> unmet_ ABSL_GUARDED_BY(mutex_);      // no connection yet
  std::set<WorkerId> unwelcome_ ABSL_GUARDED_BY(mutex_);  // a joiner's name is not known there
  struct Awaited {
    std::string name;
    std::shared_ptr<Future<WorkerInfo>::State> answer;
  };
  std::vector<Awaited> awaited_ ABSL_GUARDED_BY(mutex_);
  bool stopped_ ABSL_GUARDED_BY(mutex_) = false;
};

}  // namespace weft::rpc_internal
