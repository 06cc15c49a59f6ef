// All autograd contexts that one worker knows, and their backward passes: events in, actions out.
//
// This is the one door for a driver: hold a lock, call one method, unlock, carry out the actions in
// their order (pass_actions.h). Messages and payloads are taken by rvalue but only moved from where
// they are used, so keep the object that you passed until the lock is free.
//
// What it keeps per context: the workers to tell about the release (everyone a call went to or came
// from), the sends registered here, at most one running pass, how each initiator's passes ended,
// and, once a worker died in a pass, who.
//
// Thread safety: none; step it under the driver's lock. Deterministic: same events, same actions.
// Errors: NotFound (never heard of), FailedPrecondition (released, or a pass runs), Unavailable (an
// engaged worker or the creator died). All of them mean: nothing was executed.
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
  // What this worker can say about a pass; for a step's PREPARE.
  enum class PassStanding {
    kUnknown,    // not heard that it ended
    kRunning,    // takes part, undecided
    kCommitted,  // its gradients here, if any, are readable
    kAborted,
    kDropped,  // took part, then dropped its stage without knowing the decision
  };

  // `contexts_per_creator`: of each other worker, open here at a time; more are refused.
  explicit ContextCore(WorkerId self, size_t contexts_per_creator = 4096);
  ~ContextCore();
  ContextCore(const ContextCore&) = delete;
  ContextCore& operator=(const ContextCore&) = delete;

  // ---- contexts
  ContextId create();
  // By the creator only: tells everyone, transitively. A running pass is aborted first.
  absl::Status release(const ContextId& context, AutogradActions& out);
  absl::Status check(const ContextId& context) const;  // OK: live here

  // ---- recording
  // A message of the context goes to `peer`, whether or not a send is recorded with it.
  absl::Status note_peer(const ContextId& context, WorkerId peer);
  absl::Status note_send(const ContextId& context, const SendId& send, WorkerId peer);
  // What rides on a call or reply; `send` and `requires_grad` are the caller's to fill in.
  absl::StatusOr<AutogradMetadata> metadata(const ContextId& context) const;
  // A call or reply of a context has arrived. Refused: the call must not be executed.
  absl::Status on_call(WorkerId from, const AutogradMetadata& metadata, AutogradActions& out);

  // ---- passes. Events about a pass that has ended here are ignored.
  absl::StatusOr<PassId> start(const ContextId& context, const StartOptions& options,
                               AutogradActions& out);
  // Ends a pass with this status, at any worker: cancel, quota, a failed node, a failed hold.
  void on_local_failure(const PassId& pass, PassFailure failure, AutogradActions& out);
  void on_local_progress(const PassId& pass, LocalProgress&& progress, AutogradActions& out);
  void on_discovered(const PassId& pass, const std::vector<PeerSends>& reached,
                     AutogradActions& out);
  void on_hold(const PassId& pass);
  void on_hold_released(const PassId& pass, AutogradActions& out);
  void on_deadline(const PassId& pass, AutogradActions& out);
  PassStanding standing(const PassId& pass) const;
  // FailedPrecondition if gradients lack here: a pass is undecided, or one that this worker had
  // dropped was committed.
  absl::Status check_settled(const ContextId& context) const;

  // ---- the group
  // From the session: authentic, from a live worker, at least once in any order.
  void on_message(WorkerId from, AutogradMessage&& message, AutogradActions& out);
  // Final. Nothing from this worker may be delivered afterwards.
  void on_peer_dead(WorkerId dead, AutogradActions& out);

  size_t size() const { return contexts_.size(); }
  std::vector<ContextId> contexts() const;
  std::vector<WorkerId> peers(const ContextId& context) const;
  // The workers that contexts tie this one to; some several times.
  void append_ties(std::vector<WorkerId>& workers) const;

 private:
  // What is known about the passes of one initiator in one context.
  struct Initiator {
    PassHistory history;
    uint64_t settled = 0;  // passes up to here have ended here and are not joined again
    std::map<uint64_t, PassFailure> aborted_here;  // as initiator: to answer late messages, newest
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
  std::map<WorkerId, size_t> joined_;  // of them, by creators that are not this worker
  ReleasedContexts released_;
  std::set<WorkerId> dead_;
};

}  // namespace weft::dist_autograd_internal
