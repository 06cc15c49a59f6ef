// Holds all autograd contexts that one worker knows, and their backward passes. It is a pure core:
// events go in, actions come out.
//
// A driver uses this class only, and not PassCore. It locks, calls one method, and performs the
// actions in their order (pass_actions.h). Messages and payloads are taken by rvalue, but only the
// used parts are moved from. So keep the object that you passed until the lock is free.
//
// For each context the core keeps its peers, the sends that were registered here, and at most one
// running pass. A peer is a worker to which a call went or from which one came; a release goes to
// all peers. The core also keeps how the passes of each initiator ended. If a worker died in a
// pass, it keeps which one.
//
// Thread safety: none; call it under the driver's lock. Deterministic: the same events give the
// same actions.
// Errors: NotFound (never known here), FailedPrecondition (released, or a pass runs), Unavailable
// (an engaged worker or the creator died), ResourceExhausted (too many contexts of one creator).
// All of them mean that nothing was executed.
// Protocol: docs/backward_protocol.md.
#pragma once

#include <cstddef>
#include <map>
#include <memory>
#include <optional>
#include <set>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "weft/dist_autograd/passes/pass_actions.h"
#include "weft/dist_autograd/passes/pass_core.h"
#include "weft/dist_autograd/passes/pass_messages.h"
#include "weft/dist_autograd/passes/released_contexts.h"

namespace weft::dist_autograd_internal {

class ContextCore {
 public:
  struct StartOptions {
    BackwardMode mode = BackwardMode::kDefault;
    bool retain_graph = false;
    absl::Duration budget = absl::InfiniteDuration();
  };
  // This worker's knowledge of a pass; for the PREPARE of an optimizer step.
  enum class PassStanding {
    kUnknown,    // this worker does not know that it ended
    kRunning,    // this worker takes part, undecided
    kCommitted,  // its gradients here, if any, are readable
    kAborted,
    kDropped,  // took part, then dropped its staged gradients without knowing the decision
  };

  // `contexts_per_creator`: the contexts of one other worker that may be open here at the same
  // time; more are refused.
  explicit ContextCore(WorkerId self, size_t contexts_per_creator = 4096);
  ~ContextCore();
  ContextCore(const ContextCore&) = delete;
  ContextCore& operator=(const ContextCore&) = delete;

  // ---- contexts
  ContextId create();
  // Only for the creator. Ends a running pass, then releases the context on all workers: each peer
  // passes the release on.
  absl::Status release(const ContextId& context, AutogradActions& out);
  absl::Status check(const ContextId& context) const;  // OK: the context is open here

  // ---- recording
  // A message of the context goes to `peer`, whether or not a send is recorded with it.
  absl::Status note_peer(const ContextId& context, WorkerId peer);
  absl::Status note_send(const ContextId& context, const SendId& send, WorkerId peer);
  // The metadata for a call or reply. The caller fills in `send` and `requires_grad`.
  absl::StatusOr<AutogradMetadata> metadata(const ContextId& context) const;
  // A call or reply of a context has arrived. If this returns an error, the call must not be
  // executed.
  absl::Status on_call(WorkerId from, const AutogradMetadata& metadata, AutogradActions& out);

  // ---- passes. Events about a pass that has ended here are ignored.
  absl::StatusOr<PassId> start(const ContextId& context, const StartOptions& options,
                               AutogradActions& out);
  // Makes this worker's part of a pass fail with this status: a cancel, a quota, a failed node, a
  // failed hold. At the initiator, this aborts the pass.
  void on_local_failure(const PassId& pass, PassFailure failure, AutogradActions& out);
  void on_local_progress(const PassId& pass, LocalProgress&& progress, AutogradActions& out);
  void on_discovered(const PassId& pass, const std::vector<PeerSends>& reached,
                     AutogradActions& out);
  void on_hold(const PassId& pass);
  void on_hold_released(const PassId& pass, AutogradActions& out);
  void on_deadline(const PassId& pass, AutogradActions& out);
  PassStanding standing(const PassId& pass) const;
  // FailedPrecondition if gradients may be missing here: a pass is undecided, or a pass that this
  // worker had dropped was committed.
  absl::Status check_settled(const ContextId& context) const;

  // ---- the group
  // The session delivers messages, each at least once and in any order. `from` is the true sender.
  void on_message(WorkerId from, AutogradMessage&& message, AutogradActions& out);
  // A worker is declared dead, which is final. Later messages from it are ignored.
  void on_peer_dead(WorkerId dead, AutogradActions& out);

  size_t size() const { return contexts_.size(); }
  std::vector<ContextId> contexts() const;
  std::vector<WorkerId> peers(const ContextId& context) const;
  // Appends the workers with which this one shares contexts; a worker may appear several times.
  void append_ties(std::vector<WorkerId>& workers) const;

 private:
  // The state of one initiator's passes in one context.
  struct Initiator {
    PassHistory history;
    uint64_t settled = 0;  // passes up to this one have ended here and are not joined again
    // If this worker is the initiator: the newest aborted passes, to answer late messages.
    std::map<uint64_t, PassFailure> aborted_here;
    std::set<uint64_t> dropped;
  };
  struct Entry {
    std::set<WorkerId> peers;
    std::vector<PassCore::Source> sends;
    std::map<WorkerId, Initiator> initiators;
    std::unique_ptr<PassCore> pass;
    std::optional<PassFailure> lost;  // an engaged worker died
  };

  Entry* find(const ContextId& context);
  const Entry* find(const ContextId& context) const;
  PassCore* find_pass(const PassId& pass);
  absl::Status why_unknown(const ContextId& context) const;
  void add_peer(Entry& entry, WorkerId peer);

  template <class Event>
  void step(Entry& entry, AutogradActions& out, Event&& event);
  template <class Event>
  void step(const PassId& pass, AutogradActions& out, Event&& event);
  void after_step(Entry& entry, AutogradActions& out);
  void stamp(const Entry& entry, size_t first_new, AutogradActions& out) const;
  std::vector<PassHistory> histories(const Entry& entry) const;
  void learn(Entry& entry, const std::vector<PassHistory>& histories, AutogradActions& out);

  void on_release(WorkerId from, const ReleaseContextMessage& message, AutogradActions& out);
  void on_unknown_context(WorkerId from, const AutogradMessage& message, AutogradActions& out);
  void on_other_pass(Entry& entry, WorkerId from, AutogradMessage& message, AutogradActions& out);
  bool engage(Entry& entry, WorkerId from, const PassHeader& header, AutogradActions& out);
  void refuse(const PassId& pass, PassFailure failure, AutogradActions& out) const;
  void drop_context(const ContextId& context, std::optional<WorkerId> told_by,
                    AutogradActions& out);
  uint64_t own_watermark() const;
  bool is_dead(WorkerId worker) const { return dead_.contains(worker); }

  const WorkerId self_;
  const size_t contexts_per_creator_;
  uint64_t last_number_ = 0;
  std::map<ContextId, Entry> contexts_;
  std::map<WorkerId, size_t> joined_;  // number of open contexts by creator, without this worker's
  ReleasedContexts released_;
  std::set<WorkerId> dead_;
};

}  // namespace weft::dist_autograd_internal
