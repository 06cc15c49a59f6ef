// Decides when a group that shuts down is quiescent: no worker works and no message is in flight.
//
// It is a pure core: events go in, posts come out. The shutdown leader is the live worker with the
// lowest id.
//
// * A worker that enters the shutdown tells all others. From then on, when it is idle, it reports
//   to the shutdown leader what it has sent and received. The header base/termination.h says why
//   the leader may conclude from such reports that no message is in flight.
// * There are two phases. In phase 1, calls drain. Then every worker drops its references. In
//   phase 2, the messages that this causes drain.
// * The shutdown leader announces that a phase is complete. A worker accepts this for phase 1 once
//   all members that it knows have entered.
// * After a death in phase 1, the shutdown leader says again that it has entered. This begins a new
//   report round. Each report names its round. Reports of earlier rounds do not count.
// * If the shutdown leader is gone, the next one collects reports anew. A worker that knows that a
//   phase is complete then tells all others.
// * When the time is over, the shutdown leader asks every worker what work it has. Reports cannot
//   tell that: a busy worker sends none, and its last one may be older than its work.
//
// Thread safety: none; the driver's lock guards it.
// Protocol: docs/membership.md, "Leaving"; MembershipPost of proto/weft.proto.
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

// Counted traffic (calls, replies and posts other than membership) with one live peer.
struct PeerTraffic {
  WorkerId peer;
  uint64_t sent = 0;
  uint64_t received = 0;
  friend bool operator==(const PeerTraffic&, const PeerTraffic&) = default;
};

// A worker that kept the group from being quiescent, and its work in words.
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
    kDropping,  // phase 1 is complete, this worker drops its references
    kMessages,  // phase 2
    kEnded,
  };

  QuiescenceCore(WorkerId self, const std::vector<WorkerId>& members);

  // --- events; they append the posts to send to `out`
  void enter(Timeout timeout, TimePoint now, MembershipMessages& out);
  void references_dropped(TimePoint now, MembershipMessages& out);
  // This worker is idle. `traffic` has an entry for each peer that it takes to be live.
  void idle(std::vector<PeerTraffic> traffic, TimePoint now, MembershipMessages& out);
  // This worker is not idle, because of `work`. The driver calls it if `asked()`.
  void busy(std::string work, TimePoint now, MembershipMessages& out);
  void receive(WorkerId from, const wire::MembershipPost& post, TimePoint now,
               MembershipMessages& out);
  // This worker has joined the group. No effect for a known member.
  void joined(WorkerId worker, MembershipMessages& out);
  // False once phase 1 is complete.
  bool admits() const;
  // This worker is dead or has left. It may be one that was never known here.
  void gone(WorkerId worker, TimePoint now, MembershipMessages& out);
  void tick(TimePoint now, MembershipMessages& out);

  // --- results
  Stage stage() const { return stage_; }
  // The shutdown leader has asked what work this worker has.
  bool asked() const { return asked_; }
  // Why the stage is kEnded. False: the group is quiescent. True: the time was over, and the
  // workers of `at_work` still had work.
  bool timed_out() const { return timed_out_; }
  const std::vector<AtWork>& at_work() const { return at_work_; }
  // All live workers except this one have entered.
  bool others_entered() const;
  // Appends the live workers that have not entered, without this one.
  void append_missing(std::vector<WorkerId>& out) const;
  WorkerId leader() const { return live_.begin()->first; }
  // kNever until the last live worker has entered.
  TimePoint deadline() const { return deadline_; }

 private:
  struct Member {
    bool entered = false;
    Timeout timeout;
    uint64_t round = 0;  // the report round that this member has asked for last
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
  // For the shutdown leader: what it knows of the workers that are not idle.
  std::vector<AtWork> find_at_work() const;
  void end_phase(uint32_t phase, bool timed_out, std::vector<AtWork> at_work);
  // Tells all that `phase` is complete. The shutdown leader calls it, and a worker that knows this
  // when the leader is gone.
  void announce(uint32_t phase, MembershipMessages& out) const;

  const WorkerId self_;
  std::set<WorkerId> members_;       // all that ever were, self included
  std::map<WorkerId, Member> live_;  // self included
  Stage stage_ = Stage::kOpen;
  TimePoint deadline_ = kNever;
  uint64_t version_ = 0;
  std::optional<std::vector<PeerTraffic>> last_;  // the last report; nullopt: a new one is due
  TerminationDetector detectors_[2];              // of the two phases
  std::map<WorkerId, uint64_t> newest_;           // the version of the newest report taken
  // The newest report of each worker whose report names a worker that is not known here.
  std::map<WorkerId, wire::MembershipPost::QuiescenceReport> held_;
  uint32_t highest_phase_ = 1;  // the highest phase of any report
  bool asked_ = false;          // for its work, and has not answered
  // For the shutdown leader after the deadline: until when it waits for answers, and the answers
  // that came. An empty answer means idle.
  TimePoint answers_until_ = kNever;
  std::map<WorkerId, std::string> answers_;
  // Live workers that announced the end of phase 1 while a member that is known here had not
  // entered.
  std::set<WorkerId> calls_ended_for_;
  bool timed_out_ = false;
  std::vector<AtWork> at_work_;
};

}  // namespace weft::rpc_internal
