// Decides for one worker who is in the group and who is dead.
//
// It combines the leases with the peers (Lease), the incarnations that are gone
// (EndedIncarnations), the claims of joiners (ReplacementClaims) and the suspicions (Suspicion). It
// is a pure core: events go in, actions come out, and it uses no lock, clock, socket or store. The
// same events give the same actions.
//
// Once per heartbeat interval the driver looks at its peers and passes what it saw to `tick`. It
// sends the heartbeats that come out, asks the group's list of death records, and reports workers
// that are gone.
//
// Thread safety: none; the driver's lock guards it.
// Protocol: docs/membership.md.
#pragma once

#include <algorithm>
#include <cstdint>
#include <optional>
#include <set>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "weft/base/clock.h"
#include "weft/rpc/membership/awake_time.h"
#include "weft/rpc/membership/internal/lease.h"
#include "weft/rpc/membership/internal/membership_actions.h"
#include "weft/rpc/membership/internal/replacement_claims.h"
#include "weft/rpc/membership/internal/roster.h"
#include "weft/rpc/membership/lease_options.h"
#include "weft/rpc/rendezvous/death_records.h"
#include "weft/rpc/rendezvous/worker_info.h"

namespace weft::rpc_internal {

class MembershipCore {
 public:
  using Look = PeerLook;

  // `world_size`: of a static group; 0: a dynamic group.
  MembershipCore(WorkerInfo self, LeaseOptions limits, TimePoint now, uint32_t world_size = 0);

  // ---- the group
  // Adds a member that the rendezvous named.
  void add(const WorkerInfo& member);
  // A process that is not a member asks to become one. OK: it is a member now, and `out` has
  // notices of the deaths that it may have missed. PermissionDenied: it is refused for this reason.
  // Aborted: it claims to have replaced another worker, live or gone. The claim is compared with
  // the group's records first, and the joiner must ask again.
  absl::Status admit(const WorkerInfo& joiner, MembershipActions& out);
  // Takes the group's record for a claim; `record` is as for `found`. True: the incarnation of the
  // record is a member now. If the incarnation that it has replaced is live, it is suspected.
  bool compared(const WorkerInfo& claimant, const absl::StatusOr<std::optional<WorkerInfo>>& record,
                MembershipActions& out);
  // No worker may join any more. The comparisons that are under way admit none.
  void drop_claims() { claims_.drop_all(); }
  // The agent has reported this worker as gone, for example because it sent GOODBYE.
  void left(WorkerId worker);
  // A post or a suspect report concerns an incarnation that is not known here; others have met it.
  // It is looked up.
  void meet(WorkerId unknown, MembershipActions& out);
  // Takes the record of an unknown incarnation: nullopt if it is not in the group any more, an
  // error if no answer came in time. An answer may follow even after an error. True: it is a member
  // now.
  bool found(WorkerId unknown, const absl::StatusOr<std::optional<WorkerInfo>>& record,
             MembershipActions& out);
  // The unknown incarnation is gone here, for example because too many posts wait for it.
  void give_up(WorkerId unknown, const absl::Status& why, MembershipActions& out) {
    end(unknown, why, out);
  }
  // Takes the death records that the list held when this worker joined, or that it holds now.
  void learn(const std::vector<weft::DeathRecord>& death_records, MembershipActions& out);

  // ---- leases
  // Returns the workers for which the next look must say how long they waited for a processor.
  // These are the silent peers. If there is one, or a suspect report is open, this worker is added.
  std::vector<WorkerId> to_watch() const;
  // This worker itself has waited for a processor for `time` since the last look. Call it before
  // `tick`.
  void waited(Nanoseconds time) { own_.add_wait(time); }
  // The driver has looked at its peers; call it once per heartbeat interval.
  void tick(TimePoint now, const std::vector<Look>& looks, MembershipActions& out);
  void on_heartbeat_answer(WorkerId from, uint64_t number, TimePoint now, MembershipActions& out);
  // Returns how late this worker's timer ran lately, beyond two intervals. Its heartbeats carry it.
  Nanoseconds lag() const { return own_.lag(); }
  // Returns how much longer than usual an answer of the store may take: twice the worst lag that is
  // known, bounded.
  Nanoseconds allowance() const { return bounded(2 * std::max(worst_lag_, lag()), limits_); }
  // False: the lease with this worker is not valid, so the peer may have freed what it holds for
  // this worker. A new lease is not valid until the first answer, but calls do not wait for that
  // one (MembershipActions::Validity).
  bool has_valid_lease(WorkerId worker, TimePoint now) const;

  // ---- suspicion and death record
  // Others know this worker: one member of a static group has met it, or all members have welcomed
  // a joiner. Before that, no worker would hear of its death records, and it is more likely cut off
  // itself. So it suspects no peer for silence before.
  void established() { established_ = true; }
  // There is a reason to suspect the worker. The list is asked to declare it dead.
  void suspect(WorkerId worker, const absl::Status& reason, MembershipActions& out) {
    ask(worker, reason, true, out);
  }
  // A dial had no sign of the far end. A lease begins, which decides. A worker that is not
  // established sends a suspect report instead, and the others decide.
  void unanswered(WorkerId by, const absl::Status& reason, MembershipActions& out);
  // A suspect report of another worker names `worker`: this one keeps a lease with it for `linger`,
  // or looks it up if it is not known here.
  void look_after(WorkerId worker, MembershipActions& out);
  // A peer refuses connections. This worker may be dead to that peer or to all, or the peer is dead
  // itself. The list is only read.
  void refused(WorkerId by, const absl::Status& reason, MembershipActions& out);
  // Takes the list's answer, or an error if none came in time. An answer may follow even then.
  // Aborted: the list was not asked.
  void answer(WorkerId suspect, uint64_t question,
              const absl::StatusOr<std::vector<weft::DeathRecord>>& death_records,
              MembershipActions& out);
  // Another worker has posted a death record.
  void on_notice(const weft::DeathRecord& death_record, MembershipActions& out);

  // `tied`: the workers that references and contexts here name. Of these, the ones that are dead,
  // have left or have a later incarnation are gone here, even if they never were peers. If this
  // worker is fenced, all of them are gone.
  void settle_ended(const std::vector<WorkerId>& tied, MembershipActions& out) const;

  bool is_live(WorkerId worker) const { return roster_.find(worker) != nullptr; }
  // OK until this worker is fenced, then the reason.
  const absl::Status& standing() const { return standing_; }
  bool is_fenced() const { return !standing_.ok(); }
  // The number of peers with which there is a lease now.
  size_t leases() const;

 private:
  WorkerId self() const { return roster_.self(); }

  // ---- the group
  absl::Status refusal_of(const WorkerInfo& joiner) const;
  absl::Status claim(const WorkerInfo& joiner, WorkerId earlier, MembershipActions& out);
  void take_in(const WorkerInfo& joiner, MembershipActions& out);
  // ---- leases
  void judge_silence(const std::vector<Look>& looks, bool deaf, MembershipActions& out);
  void report_suspect(WorkerId worker, const absl::Status& reason, MembershipActions& out);
  void settle_report(const Look& look, const PassedTime& passed, MembershipActions& out);
  // ---- suspicion and death record
  void ask(WorkerId worker, const absl::Status& reason, bool declare_dead, MembershipActions& out);
  void ask_only(WorkerId worker, const absl::Status& reason, MembershipActions& out);
  void read_again(MembershipActions& out);
  void tell_others(const weft::DeathRecord& death_record, MembershipActions& out) const;
  void end(WorkerId worker, absl::Status reason, MembershipActions& out);
  void fence(const weft::DeathRecord& death_record, MembershipActions& out);

  const LeaseOptions limits_;
  Roster roster_;
  std::set<WorkerId> unknown_;  // being looked up
  ReplacementClaims claims_;
  AwakeTime own_;
  bool established_ = false;
  Nanoseconds worst_lag_{0};  // of the peers, at the last look
  uint64_t next_heartbeat_ = 1;
  uint64_t next_question_ = 1;
  uint64_t reading_ = 0;  // the open question that only reads the list again; 0: none
  TimePoint read_;        // when the last such question was answered
  Nanoseconds pause_{0};  // before the list is read again; doubles each time
  absl::Status standing_;
};

}  // namespace weft::rpc_internal
