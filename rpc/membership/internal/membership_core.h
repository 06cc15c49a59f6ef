// Decides who is in the group and who is dead: leases between pairs, suspicions, death records.
// Pure: events in, actions out; no lock, clock, socket or store.
//
// The driver looks at its peers once per heartbeat interval and reports what it saw (`tick`). It
// carries out the actions: it sends heartbeats, asks the group's list of death records, and
// announces gone workers.
//
// Thread safety: none; the driver's lock guards it. Deterministic: same events, same actions.
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

// The facts of the group as a whole, from the rendezvous.
struct GroupFacts {
  uint32_t places = 0;      // a static group has no higher index; 0: a dynamic group
  bool has_records = true;  // false: a claim to the place of an ended worker cannot be compared
};

struct MembershipActions {
  struct Heartbeat {
    WorkerId to;
    uint64_t number;
  };
  // To the death record list, within bounded time; `answer` follows. At most one per worker at a
  // time, and one that names this worker itself, which only reads.
  struct Question {
    WorkerId suspect;
    uint64_t number;
    std::string reason;
    bool declare_dead;  // else the list is only read
  };
  // The worker is gone here, from now on.
  struct Gone {
    WorkerId worker;
    absl::Status reason;
  };
  struct Notice {
    WorkerId to;
    DeathRecord death_record;
  };
  // Calls to this peer that begin later wait until the lease is valid again. kNever: no lease.
  struct Validity {
    WorkerId peer;
    TimePoint until;
  };
  std::vector<Heartbeat> heartbeats;
  std::vector<Validity> validities;
  std::vector<Question> questions;
  std::vector<Gone> gone;
  std::vector<Notice> notices;
  // To be told to the members that this worker has met: it is a joiner, and these do not answer it.
  std::vector<WorkerId> suspect_reports;
  std::vector<WorkerId> redials;
  // To be looked up in the group's records, within bounded time; `found` follows.
  std::vector<WorkerId> lookups;
  // The same of a dialler that says it has replaced a worker known here; `compared` follows.
  std::vector<WorkerInfo> claims;
  // A worker refuses this one, or does not answer, and the list does not say that either is dead.
  absl::Status refused;
  // This worker itself is dead to the others: all of them are gone, and `gone` does not say so.
  absl::Status fenced;
};

class MembershipCore {
 public:
  // One look of the driver at a live peer.
  struct Look {
    WorkerId peer;
    bool busy;              // a call, frame, reference or context stands between them
    TimePoint heard;        // when the last frame came; the past if none did
    Nanoseconds lag{0};     // as the peer said last: how late it runs
    Nanoseconds waited{0};  // since the last look, for a processor, as the kernel says (`to_watch`)
  };

  MembershipCore(WorkerInfo self, LeaseOptions limits, TimePoint now, GroupFacts group = {});

  // ---- the group
  // A member that the rendezvous named.
  void add(const WorkerInfo& member);
  // An unknown worker asks to be a member. OK: it is one now, and is told of the deaths that it may
  // have missed. PermissionDenied says why not. Aborted: it says that it has replaced a worker that
  // lives or has ended. This is compared with the group's records first, and the joiner is to ask
  // again.
  absl::Status admit(const WorkerInfo& joiner, MembershipActions& out);
  // The answer for a claim; `record` is as for `found`. True: the claimant is a member now, and the
  // incarnation that it has replaced is suspected if it lives.
  bool compared(const WorkerInfo& claimant, const absl::StatusOr<std::optional<WorkerInfo>>& record,
                MembershipActions& out);
  // Nobody may join any more: the comparisons that are under way admit nobody.
  void drop_claims() { claims_.clear(); }
  // The worker said goodbye.
  void left(WorkerId worker);
  // A message is meant for an incarnation that is not known here: others have met it.
  void meet(WorkerId unknown, MembershipActions& out);
  // The answer for a lookup: nullopt if the group has no such incarnation any more, an error if
  // nothing was heard in time. True: it is a member now. An answer may follow even after an error.
  bool found(WorkerId unknown, const absl::StatusOr<std::optional<WorkerInfo>>& record,
             MembershipActions& out);
  // Gives up an unknown incarnation, for example because too many posts wait for it.
  void give_up(WorkerId unknown, const absl::Status& why, MembershipActions& out);
  // Takes the records that the list held when this worker joined.
  void learn(const std::vector<weft::DeathRecord>& death_records, MembershipActions& out);

  // ---- leases
  // The silent peers and this worker: the next looks shall say how long they waited.
  std::vector<WorkerId> to_watch() const;
  // Before `tick`: so long has this worker itself waited for a processor since the last one.
  void waited(Nanoseconds time);
  void tick(TimePoint now, const std::vector<Look>& looks, MembershipActions& out);
  void on_heartbeat_answer(WorkerId from, uint64_t number, TimePoint now, MembershipActions& out);
  // How late this worker's timer ran lately, beyond two intervals; its heartbeats say so.
  Nanoseconds lag() const { return lag_; }
  // How much longer than usual an answer may take: twice the worst lag that is known, bounded.
  Nanoseconds allowance() const;
  // False: the peer may have declared this worker dead, and released what it holds for it. This is
  // so from the begin of a lease to the first answer, but calls do not wait for that one
  // (MembershipActions::Validity).
  bool has_valid_lease(WorkerId peer, TimePoint now) const;

  // ---- suspicions and death records
  // This worker is known to one member, in the static group that began with it, or to all members,
  // if it came later. Before, nobody would learn of its death records, and it is the one that is
  // more likely cut off.
  void established() { established_ = true; }
  // Nobody listens at the worker's address, or it breaks the protocol.
  void suspect(WorkerId worker, const absl::Status& reason, MembershipActions& out) {
    ask(worker, reason, true, out);
  }
  // A dial has failed, and nothing was heard of the peer: a lease will tell. If this worker is not
  // established, it leaves that to the others for a while.
  void unanswered(WorkerId by, const absl::Status& reason, MembershipActions& out);
  // A worker that is not established has reported this one as suspect.
  void look_after(WorkerId worker, MembershipActions& out);
  // A peer refuses connections: this worker may be dead to it, or to all, or the peer itself is
  // dead.
  void refused(WorkerId by, const absl::Status& reason, MembershipActions& out);
  // The list's answer to a question, or why none came in time; an answer may follow even then.
  // Aborted: the list was not asked.
  void answer(WorkerId suspect, uint64_t question,
              const absl::StatusOr<std::vector<weft::DeathRecord>>& death_records,
              MembershipActions& out);
  void on_notice(const weft::DeathRecord& death_record, MembershipActions& out);

  // References and contexts here name these workers. Those that have ended and were never peers are
  // gone too.
  void settle_ended(const std::vector<WorkerId>& tied, MembershipActions& out) const;

  bool is_live(WorkerId worker) const { return peers_.contains(worker); }
  // OK while this worker is a member; else why it is fenced.
  const absl::Status& standing() const { return standing_; }
  bool is_fenced() const { return !standing_.ok(); }
  // Pairs with a lease now.
  size_t leases() const;

 private:
  struct SentHeartbeat {
    uint64_t number;
    TimePoint sent;
    Nanoseconds awake;  // of `awake_`
  };
  // Between two looks.
  struct Passed {
    Nanoseconds awake;    // less what this worker was stopped
    Nanoseconds counted;  // and less what it waited for a processor
  };
  struct Peer {
    std::string name;
    TimePoint shared_until;
    bool leased = false;     // a lease runs
    Nanoseconds silence{0};  // without waits for a processor
    Nanoseconds unheard{0};  // with them
    Nanoseconds wait{0};     // of the peer; not taken from its silence yet
    int watched = 0;         // looks of this silence that could say how long it waited
    TimePoint heard;
    std::deque<SentHeartbeat> unanswered;  // oldest first
    std::optional<Nanoseconds> late;  // its answers lately, beyond an interval; nullopt: none came
    Nanoseconds lag{0};               // as it said
    TimePoint valid_until;
    uint64_t question = 0;   // open; 0: none
    bool declaring = false;  // it
    std::string suspicion;
    absl::Status undecided;       // what it means to a join if the list decides nothing
    absl::Status suspect_report;  // why others have been asked to look after it
    TimePoint suspected;
    Nanoseconds report_age{0};
  };

  absl::Status refusal_of(const WorkerInfo& joiner) const;
  // The earlier incarnation of its index with which a claim has to be compared; nullopt: none.
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
  // Takes an entry of the list, or of a notice.
  void take(const weft::DeathRecord& death_record, MembershipActions& out);
  // False: this one was remembered already.
  bool remember(const weft::DeathRecord& death_record);
  bool speaks_for(WorkerId writer) const;
  void tell_others(const weft::DeathRecord& death_record, MembershipActions& out) const;
  void tell_what_it_wrote(WorkerId writer, MembershipActions& out) const;
  void end(WorkerId worker, absl::Status reason, MembershipActions& out);
  void fence(const weft::DeathRecord& death_record, MembershipActions& out);
  bool ended(WorkerId worker) const;
  // A later incarnation of its index was a member, or has a death record, and has ended.
  bool has_ended_later(WorkerId worker) const;
  bool outlived(WorkerId worker) const;
  void forget_oldest();
  std::string named(WorkerId worker) const;

  const WorkerInfo self_;
  const LeaseOptions limits_;
  const GroupFacts group_;
  std::map<WorkerId, Peer> peers_;  // live ones, without self
  std::set<WorkerId> unknown_;      // looked up now
  // Diallers whose claim is compared now, and those that the records contradict, oldest first.
  std::map<WorkerId, WorkerInfo> claims_;
  std::deque<WorkerInfo> contradicted_;
  // An incarnation that is known to have ended.
  struct Ended {
    std::string name;    // if it was a member
    WorkerId by;         // the writer of its death record; not valid if that is not known
    std::string reason;  // in the death record
  };
  std::map<WorkerId, Ended> ended_;
  // Peers of `ended_` that this worker has given up without a death record.
  std::set<WorkerId> undecided_;
  Nanoseconds pause_{0};              // before the list is read again: longer each time
  uint64_t reading_ = 0;              // the open question that only reads the list again; 0: none
  TimePoint read_;                    // when the last such question was answered
  std::deque<WorkerId> ended_order_;  // the keys of ended_, oldest first
  // Of those that ended_ holds no more, the last member of each index.
  std::map<uint32_t, uint32_t> forgotten_;
  bool established_ = false;
  TimePoint last_tick_;
  Nanoseconds awake_{0};      // since the beginning, less what this worker was stopped
  Nanoseconds own_wait_{0};   // for a processor; not taken from anybody's silence yet
  Nanoseconds lag_{0};        // of this worker's timer
  Nanoseconds worst_lag_{0};  // of the peers, at the last look
  uint64_t next_heartbeat_ = 1;
  uint64_t next_question_ = 1;
  absl::Status standing_;
};

}  // namespace weft::rpc_internal
