// Decides for one worker who is in the group and who is dead.
//
// It keeps the leases with the peers, the suspicions and the death records. It is a pure core:
// events go in, actions come out, and it uses no lock, clock, socket or store. The same events give
// the same actions.
//
// Once per heartbeat interval the driver looks at its peers and passes what it saw to `tick`. It
// sends the heartbeats that come out, asks the group's list of death records, and reports workers
// that are gone.
//
// Thread safety: none; the driver's lock guards it.
// Protocol: docs/membership.md.
#pragma once

#include <cstdint>
#include <deque>
#include <map>
#include <optional>
#include <set>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "weft/base/clock.h"
#include "weft/rpc/membership/lease_options.h"
#include "weft/rpc/rendezvous/death_records.h"
#include "weft/rpc/rendezvous/worker_info.h"

namespace weft::rpc_internal {

// Properties of the whole group, known from the rendezvous.
struct GroupFacts {
  uint32_t world_size = 0;  // of a static group; 0: a dynamic group
  bool has_records = true;  // false: claims to have replaced a gone worker are not compared
};

struct MembershipActions {
  struct Heartbeat {
    WorkerId to;
    uint64_t number;
  };
  // The driver asks the list of death records, within bounded time, and then calls `answer`. At
  // most one question per peer is open. One more may name this worker itself; it only reads.
  struct Question {
    WorkerId suspect;
    uint64_t number;
    std::string reason;
    bool declare_dead;  // else the list is only read
  };
  // From now on, this worker is gone here.
  struct Gone {
    WorkerId worker;
    absl::Status reason;
  };
  struct Notice {
    WorkerId to;
    DeathRecord death_record;  // to post to `to`
  };
  // Calls to this peer that begin at `until` or later wait until its lease is valid again. kNever:
  // there is no lease, so calls do not wait.
  struct Validity {
    WorkerId peer;
    TimePoint until;
  };
  std::vector<Heartbeat> heartbeats;
  std::vector<Validity> validities;
  std::vector<Question> questions;
  std::vector<Gone> gone;
  std::vector<Notice> notices;
  // Workers that do not answer this one. The driver reports them to the members that it has met.
  std::vector<WorkerId> suspect_reports;
  // Workers that did not answer a dial. The driver dials them again.
  std::vector<WorkerId> redials;
  // The driver looks up the group's record of these, within bounded time, and then calls `found`.
  std::vector<WorkerId> lookups;
  // The same for a dialler that claims to have replaced a worker; the driver calls `compared`.
  std::vector<WorkerInfo> claims;
  // Not OK: a worker refuses this one or does not answer, and the list names neither as dead.
  absl::Status refused;
  // Not OK: this worker is dead to the others. All peers are gone then, and `gone` does not list
  // them.
  absl::Status fenced;
};

class MembershipCore {
 public:
  // The state of a live peer at one look of the driver.
  struct Look {
    WorkerId peer;
    bool busy;              // the two have shared state
    TimePoint heard;        // when the last frame came; in the past if none has come
    Nanoseconds lag{0};     // how late the peer runs, as its newest heartbeat or answer says
    Nanoseconds waited{0};  // for a processor since the last look, per the kernel (`to_watch`)
  };

  MembershipCore(WorkerInfo self, LeaseOptions limits, TimePoint now, GroupFacts group = {});

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
  void drop_claims() { claims_.clear(); }
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
  void give_up(WorkerId unknown, const absl::Status& why, MembershipActions& out);
  // Takes the death records that the list held when this worker joined.
  void learn(const std::vector<weft::DeathRecord>& death_records, MembershipActions& out);

  // ---- leases
  // Returns the workers for which the next look must say how long they waited for a processor.
  // These are the silent peers. If there is one, or a suspect report is open, this worker is added.
  std::vector<WorkerId> to_watch() const;
  // This worker itself has waited for a processor for `time` since the last look. Call it before
  // `tick`.
  void waited(Nanoseconds time);
  // The driver has looked at its peers; call it once per heartbeat interval.
  void tick(TimePoint now, const std::vector<Look>& looks, MembershipActions& out);
  void on_heartbeat_answer(WorkerId from, uint64_t number, TimePoint now, MembershipActions& out);
  // Returns how late this worker's timer ran lately, beyond two intervals. Its heartbeats carry it.
  Nanoseconds lag() const { return lag_; }
  // Returns how much longer than usual an answer of the store may take: twice the worst lag that is
  // known, bounded.
  Nanoseconds allowance() const;
  // False: the lease with this peer is not valid, so the peer may have freed what it holds for this
  // worker. A new lease is not valid until the first answer, but calls do not wait for that one
  // (MembershipActions::Validity).
  bool has_valid_lease(WorkerId peer, TimePoint now) const;

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

  bool is_live(WorkerId worker) const { return peers_.contains(worker); }
  // OK until this worker is fenced, then the reason.
  const absl::Status& standing() const { return standing_; }
  bool is_fenced() const { return !standing_.ok(); }
  // The number of peers with which there is a lease now.
  size_t leases() const;

 private:
  struct SentHeartbeat {
    uint64_t number;
    TimePoint sent;
    Nanoseconds awake;  // `awake_` when it was sent
  };
  // The time between two looks.
  struct Passed {
    Nanoseconds awake;    // without the time for which this worker was stopped
    Nanoseconds counted;  // also without the time for which it waited for a processor
  };
  struct Peer {
    std::string name;
    TimePoint shared_until;
    bool leased = false;     // there is a lease
    Nanoseconds silence{0};  // without waits for a processor
    Nanoseconds unheard{0};  // with them
    Nanoseconds wait{0};     // the peer's waits for a processor that `silence` does not exclude yet
    int watched = 0;         // looks during this silence that could tell how long it waited
    TimePoint heard;
    std::deque<SentHeartbeat> unanswered;  // oldest first
    std::optional<Nanoseconds> late;  // of its recent answers, beyond an interval; nullopt: none
    Nanoseconds lag{0};               // of its timer, as its newest heartbeat or answer says
    TimePoint valid_until;
    uint64_t question = 0;   // number of the open question; 0: none
    bool declaring = false;  // the open question may append a death record
    std::string suspicion;
    absl::Status undecided;       // a joiner fails with this if the list decides nothing
    absl::Status suspect_report;  // not OK: a report is open, for this reason
    TimePoint suspected;          // when the report was sent
    Nanoseconds report_age{0};    // of the open report
  };

  absl::Status refusal_of(const WorkerInfo& joiner) const;
  // Returns the earlier incarnation of the joiner's index that is known here. If there is one, the
  // joiner's claim must be compared with the record. nullopt: there is none.
  std::optional<WorkerId> replaced_by(WorkerId joiner) const;
  absl::Status claim(const WorkerInfo& joiner, WorkerId earlier, MembershipActions& out);
  void take_in(const WorkerInfo& joiner, MembershipActions& out);
  void judge_silence(const std::vector<Look>& looks, bool deaf, MembershipActions& out);
  void report_suspect(WorkerId worker, const absl::Status& reason, MembershipActions& out);
  void settle_report(const Look& look, const Passed& passed, MembershipActions& out);
  void listen(Peer& peer, const Look& look, TimePoint now, const Passed& passed,
              MembershipActions& out) const;
  Passed note_passed(TimePoint now);
  Nanoseconds bounded(Nanoseconds lag) const;
  Nanoseconds lag_of(const Peer& peer) const;
  Nanoseconds silence_limit(const Peer& peer) const;
  bool is_watched(const Peer& peer) const;
  bool is_silent(const Peer& peer, Nanoseconds more = Nanoseconds(0)) const;
  void ask(WorkerId worker, const absl::Status& reason, bool declare_dead, MembershipActions& out);
  void ask_only(WorkerId worker, const absl::Status& reason, MembershipActions& out);
  void read_again(MembershipActions& out);
  // Takes an entry of the list.
  void take(const weft::DeathRecord& death_record, MembershipActions& out);
  // False: it was remembered already.
  bool remember(const weft::DeathRecord& death_record);
  // True: this worker must tell the others of the death records of `writer`.
  bool speaks_for(WorkerId writer) const;
  void tell_others(const weft::DeathRecord& death_record, MembershipActions& out) const;
  void tell_what_it_wrote(WorkerId writer, MembershipActions& out) const;
  void end(WorkerId worker, absl::Status reason, MembershipActions& out);
  void fence(const weft::DeathRecord& death_record, MembershipActions& out);
  // True: the incarnation is known to be gone.
  bool ended(WorkerId worker) const;
  // True: a later incarnation of its index is gone, and it was a member or has a death record.
  bool has_ended_later(WorkerId worker) const;
  // True: a later incarnation of its index is known, live or gone.
  bool outlived(WorkerId worker) const;
  void forget_oldest();
  std::string named(WorkerId worker) const;

  const WorkerInfo self_;
  const LeaseOptions limits_;
  const GroupFacts group_;
  std::map<WorkerId, Peer> peers_;  // live ones, without self
  std::set<WorkerId> unknown_;      // being looked up
  // Diallers whose claims are being compared, and those that the records contradict, oldest first.
  std::map<WorkerId, WorkerInfo> claims_;
  std::deque<WorkerInfo> contradicted_;
  // An incarnation that is known to be gone.
  struct Ended {
    std::string name;    // empty: it was never a member
    WorkerId by;         // the writer of its death record; not valid: no record is known
    std::string reason;  // in the death record
  };
  std::map<WorkerId, Ended> ended_;
  // Peers of `ended_` that this worker has given up without a death record.
  std::set<WorkerId> undecided_;
  Nanoseconds pause_{0};              // before the list is read again; doubles each time
  uint64_t reading_ = 0;              // the open question that only reads the list again; 0: none
  TimePoint read_;                    // when the last such question was answered
  std::deque<WorkerId> ended_order_;  // the keys of ended_, oldest first
  // Of the incarnations that ended_ no longer holds: the last member of each index, by incarnation.
  std::map<uint32_t, uint32_t> forgotten_;
  bool established_ = false;
  TimePoint last_tick_;
  Nanoseconds awake_{0};      // since the constructor, without the time this worker was stopped
  Nanoseconds own_wait_{0};   // for a processor; not taken from any peer's silence yet
  Nanoseconds lag_{0};        // of this worker's timer
  Nanoseconds worst_lag_{0};  // of the peers, at the last look
  uint64_t next_heartbeat_ = 1;
  uint64_t next_question_ = 1;
  absl::Status standing_;
};

}  // namespace weft::rpc_internal
