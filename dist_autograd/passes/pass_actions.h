// Defines the actions that the cores of distributed autograd ask their driver to perform.
//
// The driver locks, calls one method of ContextCore, and performs the actions in their order. It
// may perform local actions under the lock; it sends messages after it has unlocked. The actions
// for one pass's local graph (EngageLocal to DropStage) must reach that graph in the order in which
// they were given: one strand per pass.
//
// Thread safety: plain values.
// Protocol: docs/backward_protocol.md.
#pragma once

#include <variant>
#include <vector>

#include "weft/dist_autograd/passes/pass_messages.h"

namespace weft::dist_autograd_internal {

// The actions have a namespace of their own, because the cores of other rooms have a Send too.
namespace backward {

// Post `message` to `to` (never this worker). If the message has a header, the driver sets its
// budget to the time that is left until the pass's deadline here.
struct Send {
  WorkerId to{};
  AutogradMessage message{};
};

// Build the local graph of the pass: count the dependencies over all sources, and over the roots at
// the initiator.
struct EngageLocal {
  PassId pass{};
  std::vector<SendId> sources{};  // ascending
  bool retain_graph = false;
};

// The next four actions run something. The driver answers each once, unless StopLocal or DropStage
// comes first: by on_local_progress with `done` (Discover: by on_discovered), or by
// on_local_failure.
struct FeedRoots {
  PassId pass{};
};
struct Feed {
  PassId pass{};
  WorkerId from{};
  std::vector<GradEntry> entries{};
};
// Walk forward from these sources (and the roots) and name every recv that was not reached before.
struct Discover {
  PassId pass{};
  bool from_roots = false;
  std::vector<SendId> sources{};
};
// These sources will get nothing: drop their dependencies and run the nodes that become ready.
struct CancelSends {
  PassId pass{};
  std::vector<SendId> sources{};
};

// Run no further node of this pass. Keep its staged gradients, unreadable, until the pass is
// decided.
struct StopLocal {
  PassId pass{};
};
// The pass is committed: add its staged gradients to the context's readable gradients. Forget the
// sends in `spent`, whose graph is used up (none with retain_graph).
struct StageMerge {
  PassId pass{};
  std::vector<SendId> spent{};
};
// The pass has ended without gradients here: stop it, and drop its buffers and staged gradients.
struct DropStage {
  PassId pass{};
};

// At the initiator: the pass has ended, and outcome.status says how. Comes once per start().
struct CompleteBackward {
  PassId pass{};
  PassFailure outcome{};
};

// A pass has one timer; a second ArmDeadline replaces the first. When the timer fires, the driver
// calls on_deadline.
struct ArmDeadline {
  PassId pass{};
  absl::Duration after{};
};
struct CancelDeadline {
  PassId pass{};
};

// The context is gone here: drop its sends and gradients.
struct DropContext {
  ContextId context{};
};

}  // namespace backward

using AutogradAction =
    std::variant<backward::Send, backward::EngageLocal, backward::FeedRoots, backward::Feed,
                 backward::Discover, backward::CancelSends, backward::StopLocal,
                 backward::StageMerge, backward::DropStage, backward::CompleteBackward,
                 backward::ArmDeadline, backward::CancelDeadline, backward::DropContext>;
using AutogradActions = std::vector<AutogradAction>;

// Results of the local graph since its last report.
struct PeerGradients {
  WorkerId peer{};
  std::vector<GradEntry> entries{};
};
struct LocalProgress {
  std::vector<PeerGradients> outputs{};  // one per peer; may include this worker itself
  bool done = true;      // the running action is complete; its last outputs are in here
  bool waiting = false;  // only with `done`: a gradient waits (docs/backward_protocol.md)
};

// The result of a walk: sends that will get an entry, by the worker that registered them.
struct PeerSends {
  WorkerId peer{};
  std::vector<SendId> sends{};
};

}  // namespace weft::dist_autograd_internal
