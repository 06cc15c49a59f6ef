// Runs one worker's part of the protocol for one backward pass. It is a pure core: events go in,
// actions come out.
//
// The initiator starts the pass and alone decides how it ends. Every other worker is engaged by its
// first GRAD or ACTIVATE. ContextCore owns the cores, and finds the right one for an event. When a
// core is gone, ContextCore remembers how its pass ended. A driver never calls this class itself.
//
// Thread safety: none; call it under the driver's lock.
// Errors: never returned. A failure becomes FAIL, ABORT or CompleteBackward.
// Protocol: docs/backward_protocol.md.
#pragma once

#include <cstddef>
#include <map>
#include <set>
#include <vector>

#include "weft/base/termination.h"
#include "weft/dist_autograd/passes/pass_actions.h"
#include "weft/dist_autograd/passes/pass_messages.h"

namespace weft::dist_autograd_internal {

class PassCore {
 public:
  // A send that was registered here when the pass reached this worker.
  struct Source {
    SendId id;
    WorkerId peer;  // holds the recv, so only it may send the gradients
  };
  struct Setup {
    PassId pass;
    WorkerId self;
    BackwardMode mode = BackwardMode::kDefault;
    bool retain_graph = false;
    std::vector<Source> sources;               // in any order
    const std::set<WorkerId>* dead = nullptr;  // borrowed, outlives this; workers are only added
  };
  enum class State {
    kRunning,
    kFailed,     // participant: failed here, the initiator will decide
    kCommitted,  // this state and the next ones: ended, all events are ignored
    kAborted,
    kDropped,  // ended here without knowing the initiator's decision
  };

  explicit PassCore(Setup setup);

  const PassId& id() const { return setup_.pass; }
  State state() const { return state_; }
  bool ended() const { return state_ >= State::kCommitted; }
  bool initiator() const { return setup_.pass.initiator == setup_.self; }
  const PassFailure& failure() const { return failure_; }

  // The first event: `start` at the initiator, `engage` at every other worker. `budget` may be
  // infinite.
  void start(absl::Duration budget, AutogradActions& out);
  void engage(absl::Duration budget, AutogradActions& out);

  void on_message(WorkerId from, GradMessage& message, AutogradActions& out);
  void on_message(WorkerId from, ActivateMessage& message, AutogradActions& out);
  void on_message(WorkerId from, SealMessage& message, AutogradActions& out);
  void on_message(WorkerId from, ReportMessage& message, AutogradActions& out);
  void on_message(WorkerId from, PublishMessage& message, AutogradActions& out);
  void on_message(WorkerId from, FailMessage& message, AutogradActions& out);
  void on_message(WorkerId from, AbortMessage& message, AutogradActions& out);

  void on_local_progress(LocalProgress& progress, AutogradActions& out);
  void on_discovered(const std::vector<PeerSends>& reached, AutogradActions& out);
  // A node failed, or a hold failed, or the caller cancelled the pass, or a quota was passed.
  void on_local_failure(PassFailure failure, AutogradActions& out);

  // A hold keeps this worker from counting as idle. Call on_hold only while an action runs or
  // another hold is held.
  void on_hold();
  void on_hold_released(AutogradActions& out);

  void on_peer_dead(WorkerId dead, AutogradActions& out);
  void on_deadline(AutogradActions& out);

  // This worker has learned the initiator's decision, from PUBLISH or a history.
  void on_decided(bool committed, AutogradActions& out);
  // This worker cannot learn the decision any more, or the context is released: the pass ends here.
  // At the initiator this aborts the pass with `why`.
  void drop(absl::Status why, AutogradActions& out);

 private:
  struct SourceState {
    WorkerId peer;
    bool active = false;  // discovery reached it
    bool fed = false;
    bool cancelled = false;
  };
  enum class Phase { kFeed, kDiscover, kSealed };

  PassHeader header() const;
  bool reachable(WorkerId to, AutogradActions& out);
  bool take_counted(WorkerId from, uint64_t number, std::vector<PassReport>& reports);
  void carry(std::vector<PassReport>& reports);

  absl::Status check_entry(WorkerId from, const GradEntry& entry) const;
  void feed(WorkerId from, std::vector<GradEntry>& entries, AutogradActions& out);
  bool needless(const GradEntry& entry) const;
  void activate(const std::vector<SendId>& sends, AutogradActions& out);
  void cancel_inactive(AutogradActions& out);

  bool idle() const { return open_ == 0 && holds_ == 0; }
  void settle(size_t first_new, AutogradActions& out);
  PassReport own_report();
  void report_to_initiator(size_t first_new, AutogradActions& out);

  void decide_if_quiescent(AutogradActions& out);
  void begin_discovery(AutogradActions& out);
  void seal(AutogradActions& out);
  void commit(AutogradActions& out);
  void fail(PassFailure failure, AutogradActions& out);
  void abort(PassFailure failure, AutogradActions& out);
  void end(State state, AutogradActions& out);
  void forward_abort(WorkerId except, AutogradActions& out);
  std::vector<WorkerId> others() const;
  PassFailure failure_here(absl::Status status) const;
  std::string unfed_calls() const;

  Setup setup_;
  std::map<SendId, SourceState> sources_;
  std::set<SendId> reached_;  // sends whose recv on this worker was reached by a walk
  bool sealed_ = false;       // the sources that discovery did not reach are cancelled
  State state_ = State::kRunning;
  Phase phase_ = Phase::kFeed;  // initiator only
  PassFailure failure_;
  bool past_deadline_ = false;

  size_t open_ = 0;  // actions given to the local graph and not answered
  size_t holds_ = 0;
  bool waiting_ = false;  // whether a gradient waits, by the newest LocalProgress
  bool changed_ = true;   // counters or `waiting_` have changed since the last report

  MessageCounts counts_;
  std::map<WorkerId, PassReport> reports_;  // participant: reports of others for the initiator
                                            // initiator: the newest report of each worker
  TerminationDetector detector_;            // initiator only
};

// The time for which a participant waits for a decision after the deadline.
inline constexpr absl::Duration kDecisionGrace = absl::Seconds(1);

}  // namespace weft::dist_autograd_internal
