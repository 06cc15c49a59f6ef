// Decides when a group that wants to end has nothing left to do: pure, events in, posts out.
//
// Every worker that enters tells all others. From then on it reports to the shutdown leader, the
// live worker with the lowest id, whenever it is idle. A report holds what the worker has sent and
// received. base/termination.h says why the leader may conclude from such reports that no message
// is in flight. There are two phases. In the first, calls drain. Then every worker drops its
// references, and in the second phase the messages of that drain.
//
// The leader announces the end of each phase. A worker accepts the end of the first once all
// members that it knows have entered. After a death the leader says again that it has entered. This
// entry begins a report round and asks for new reports. Each report names the round that it
// answers, and reports of earlier rounds do not count. If a leader is gone, the next one collects
// reports anew. A worker that knows of the end of a phase tells the new leader. When the time is
// over, the leader asks every worker what it is at. Reports cannot tell: a busy worker sends none,
// and its last one may be from before its work began.
//
// Thread safety: none; the driver's lock guards it.
// Protocol: MembershipPost of proto/weft.proto.
#pragma once

#include <cstdint>
#include <map>
#include <optional>
#include <set>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "weft/base/clock.h"
#include "weft/base/termination.h"
#include "weft/proto/weft.pb.h"

namespace weft::rpc_internal {

// Counted traffic with one live peer.
struct PeerTraffic {
  WorkerId peer;
  uint64_t sent = 0;
  uint64_t received = 0;
  friend bool operator==(const PeerTraffic&, const PeerTraffic&) = default;
};

// A worker that kept the group from ending, and by what.
struct AtWork {
  WorkerId worker;
  std::string work;
};

struct MembershipMessage {
  WorkerId to;
  wire::MembershipPost post;
};
using MembershipMessages = std::vector<MembershipMessage>;

class QuiescenceCore {
 public:
  enum class Stage {
    kOpen,      // this worker has not entered
    kCalls,     // phase 1
    kDropping,  // phase 1 has ended, this worker drops its references
    kMessages,  // phase 2
    kEnded,
  };

  QuiescenceCore(WorkerId self, const std::vector<WorkerId>& members);

  // --- events; what is to be sent is appended to `out`
  void enter(Timeout timeout, TimePoint now, MembershipMessages& out);
  void references_dropped(TimePoint now, MembershipMessages& out);
  // This worker is idle, with these counters for each peer that it holds for live.
  void idle(std::vector<PeerTraffic> traffic, TimePoint now, MembershipMessages& out);
  // It is not, for this reason. Wanted where `asked`.
  void busy(std::string work, TimePoint now, MembershipMessages& out);
  void receive(WorkerId from, const wire::MembershipPost& post, TimePoint now,
               MembershipMessages& out);
  // A member that was not there from the start. Harmless for one that was.
  void joined(WorkerId worker, MembershipMessages& out);
  bool admits() const;
  // Dead, or left; also one that was never known here.
  void gone(WorkerId worker, TimePoint now, MembershipMessages& out);
  void tick(TimePoint now, MembershipMessages& out);

  // --- what follows
  Stage stage() const { return stage_; }
  // The leader wants to know what this worker is at.
  bool asked() const { return asked_; }
  // Why it ended: all was quiet, or the time was over and these were at work.
  bool timed_out() const { return timed_out_; }
  const std::vector<AtWork>& at_work() const { return at_work_; }
  bool others_entered() const;
  // Those that have not.
  void append_missing(std::vector<WorkerId>& out) const;
  WorkerId leader() const { return live_.begin()->first; }
  // kNever until the last live worker has entered.
  TimePoint deadline() const { return deadline_; }

 private:
  struct Member {
    bool entered = false;
    Timeout timeout;
    uint64_t round = 0;  // of reports of phase 1, as its newest entry says
  };

  uint32_t phase() const { return stage_ == Stage::kMessages ? 2 : 1; }
  bool draining() const { return stage_ == Stage::kCalls || stage_ == Stage::kMessages; }
  wire::MembershipPost entry() const;
  void send_to_all(const wire::MembershipPost& post, MembershipMessages& out) const;
  void report(MembershipMessages& out);
  void take_report(WorkerId from, const wire::MembershipPost::QuiescenceReport& report);
  void submit(wire::MembershipPost post, MembershipMessages& out);
  void on_report(WorkerId from, const wire::MembershipPost::QuiescenceReport& report);
  void check(TimePoint now, MembershipMessages& out);
  void check_deadline(TimePoint now, MembershipMessages& out);
  void begin_round(MembershipMessages& out);
  void start_clock(TimePoint now);
  bool all_answered() const;
  // As leader: what is known of those that are not idle.
  std::vector<AtWork> find_at_work() const;
  void end_phase(uint32_t phase, bool timed_out, std::vector<AtWork> at_work);
  // As leader, or as one who knows: tells all that `phase` has ended.
  void announce(uint32_t phase, MembershipMessages& out) const;

  const WorkerId self_;
  std::set<WorkerId> members_;       // all that have been, self included
  std::map<WorkerId, Member> live_;  // self included
  Stage stage_ = Stage::kOpen;
  TimePoint deadline_ = kNever;
  uint64_t version_ = 0;
  std::optional<std::vector<PeerTraffic>> last_;  // what was reported in this phase, to this leader
  TerminationDetector detectors_[2];              // of the two phases
  std::map<WorkerId, uint64_t> newest_;           // versions of the reports that were taken
  // Newest reports that name a worker which is not known here.
  std::map<WorkerId, wire::MembershipPost::QuiescenceReport> held_;
  uint32_t highest_phase_ = 1;  // that somebody is known to be in
  bool asked_ = false;          // and has not answered
  // As leader after the deadline: until when it waits for answers, and those that came; empty:
  // idle.
  TimePoint answers_until_ = kNever;
  std::map<WorkerId, std::string> answers_;
  // Live workers that said that phase 1 has ended, before all had entered as far as is known here.
  std::set<WorkerId> calls_ended_for_;
  bool timed_out_ = false;
  std::vector<AtWork> at_work_;
};

}  // namespace weft::rpc_internal
