// Decides who is in the group and who is dead: leases between pairs, suspicions, death records.
// Pure: events in, actions out; no lock, clock, socket or store.
//
// The driver looks at its peers once per interval and reports what it saw (`tick`); it sends the
// heartbeats that come out, puts the questions to the group's death record list, and tells of gone
// workers.
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

// What the rendezvous says of the group as a whole.
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
  // Is gone here, from now on.
  struct Gone {
    WorkerId worker;
    absl::Status reason;
  };
  struct Notice {
    WorkerId to;
    weft::DeathRecord death_record;  // Death record is that of a step
  };
  // Calls to this peer that begin later wait until it is trusted again. kNever: there is no lease.
  struct Validity {
    WorkerId peer;
    TimePoint until;
  };
  std::vector<Heartbeat> heartbeats;
  std::vector<Validity> validities;
  std::vector<Question> questions;
  std::vector<Gone> gone;
  std::vector<Notice> notices;
  // To be told to the members that are met: somebody who is none yet is not answered by this one.
  std::vector<WorkerId> suspect_reports;
  std::vector<WorkerId> redials;
  // Ask the group's records who that is, within bounded time; `found` follows.
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
  // What the driver saw of a live peer.
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
  // Somebody who is not known asks to be a member. OK: is one now, and is told of the deaths that
  // it may have missed. PermissionDenied says why not. Aborted: it says that it has replaced a
  // worker that lives or has ended; this is compared with the group's records first, and the
  // joiner is to ask again.
  absl::Status admit(const WorkerInfo& joiner, MembershipActions& out);
  // What the group's records say of such a life, as for `found`. True: is a member now, and the
  // life that it has replaced is suspected if it lives.
  bool compared(const WorkerInfo& claimant, const absl::StatusOr<std::optional<WorkerInfo>>& record,
                MembershipActions& out);
  // Nobody may join any more: the comparisons that are under way admit nobody.
  void drop_claims() { claims_.clear(); }
  // It said goodbye.
  void left(WorkerId worker);
  // Something is meant for a life that is not known here: others have met it and speak of it.
  void meet(WorkerId unknown, MembershipActions& out);
  // Whose record that is: nullopt if the group has no such life any more; an error if nothing was
  // heard in time. True: is a member now. An answer may follow even after an error.
  bool found(WorkerId unknown, const absl::StatusOr<std::optional<WorkerInfo>>& record,
             MembershipActions& out);
  // A unknown process for whom too much waits, say.
  void give_up(WorkerId unknown, const absl::Status& why, MembershipActions& out);
  // What the list held when this worker joined.
  void learn(const std::vector<weft::DeathRecord>& death_records, MembershipActions& out);

  // ---- leases
  // The silent, and this worker itself: the next looks shall say how long they waited.
  std::vector<WorkerId> to_watch() const;
  // Before `tick`: so long has this worker itself waited for a processor since the last one.
  void waited(Nanoseconds time);
  void tick(TimePoint now, const std::vector<Look>& looks, MembershipActions& out);
  void on_heartbeat_answer(WorkerId from, uint64_t number, TimePoint now, MembershipActions& out);
  // How late this worker's timer ran lately, beyond two intervals; its heartbeats say so.
  Nanoseconds lag() const { return lag_; }
  // How much longer than usual an answer may take: twice the worst lag that is known, bounded.
  Nanoseconds allowance() const;
  // False: what the peer holds for this worker may be given away already. So it is from when their
  // lease begins until the first answer; calls do not wait for that one (MembershipActions::Trust).
  bool validities(WorkerId peer, TimePoint now) const;

  // ---- suspicion and death record
  // This worker is known: to one member, of those that a static group began with; to all, if it
  // came later. Before, nobody would learn of its death records, and it is the one that is more
  // likely cut off.
  void established() { established_ = true; }
  // Nobody listens at its address, or it is in breach of the protocol.
  void suspect(WorkerId worker, const absl::Status& reason, MembershipActions& out) {
    ask(worker, reason, true, out);
  }
  // A dial has failed, and nothing was heard of it: a lease will tell. Who is not established
  // leaves that to the others, for a while.
  void unanswered(WorkerId by, const absl::Status& reason, MembershipActions& out);
  // One who is not established has such doubts.
  void look_after(WorkerId worker, MembershipActions& out);
  // A peer refuses connections: this worker may be dead to it, or to all, or the peer itself is
  // dead.
  void refused(WorkerId by, const absl::Status& reason, MembershipActions& out);
  // What the list said, or why nothing was heard of it in time; an answer may follow even then.
  // Aborted: it was not asked.
  void answer(WorkerId suspect, uint64_t question,
              const absl::StatusOr<std::vector<weft::DeathRecord>>& death_records,
              MembershipActions& out);
  void on_notice(const weft::DeathRecord& death_record, MembershipActions& out);

  // References and contexts here name these. Who has ended and was never a peer is gone too.
  void settle_ended(const std::vector<WorkerId>& tied, MembershipActions& out) const;

  bool is_live(WorkerId worker) const { return peers_.contains(worker); }
  // OK while the others hold this worker for one of them.
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
  // The earlier incarnation of its place with which a claim has to be compared; nullopt: none.
  std::optional<WorkerId> replaced_by(WorkerId joiner) const;
  absl::Status claim(const WorkerInfo& joiner, WorkerId earlier, MembershipActions& out);
  void take_in(const WorkerInfo& joiner, MembershipActions& out);
  void judge_silence(const std::vector<Look>& looks, bool deaf, MembershipActions& out);
  void suspect_report(WorkerId worker, const absl::Status& reason, MembershipActions& out);
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
  // A life that is known to have ended.
  struct Ended {
    std::string name;    // if it was a member
    WorkerId by;         // who wrote its death record; not valid: nobody that is known
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
