// What the cores of distributed autograd ask their driver to do.
//
// The driver holds its lock, calls one method of ContextCore, unlocks, and then carries out the
// actions in their order. Those about one pass's local graph (EngageLocal to DropStage) must reach
// that graph in the order in which they were given: one strand per pass.
//
// Thread safety: plain values.
// Protocol: docs/backward_protocol.md.
#pragma once

#include <variant>
#include <vector>

#include "weft/dist_autograd/passes/pass_messages.h"

namespace weft::dist_autograd_internal {

// A namespace of their own: other rooms' cores have a Send too.
namespace backward {

// Post `message` to `to` (never this worker). The driver sets the budget of a header to what is
// left until the pass's deadline here.
struct Send {
  WorkerId to{};
  AutogradMessage message{};
};

// Build the local graph of the pass: count dependencies over all sources, and the roots where
// roots were given.
struct EngageLocal {
  PassId pass{};
  std::vector<SendId> sources{};  // ascending
  bool retain_graph = false;
};

// The four that run something. Each is answered once, by on_local_progress with `done` (Discover:
// by on_discovered) or by on_local_failure, unless StopLocal or DropStage came in between.
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
// These sources will get nothing: drop their dependencies and run what became ready.
struct CancelSends {
  PassId pass{};
  std::vector<SendId> sources{};
};

// Run no further node of this pass; keep its stage, unreadable, until the pass is decided.
struct StopLocal {
  PassId pass{};
};
// The pass is committed: its stage joins the context's readable gradients. `spent` are the sends
// whose graph is used up (none with retain_graph): forget them.
struct StageMerge {
  PassId pass{};
  std::vector<SendId> spent{};
};
// The pass has ended without gradients here: stop, drop buffers and stage.
struct DropStage {
  PassId pass{};
};

// At the initiator: the pass has ended; outcome.status says how. Once per start().
struct CompleteBackward {
  PassId pass{};
  PassFailure outcome{};
};

// One timer per pass; a second ArmDeadline replaces the first. It ends in on_deadline.
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

// What the local graph did since it last said something.
struct PeerGradients {
  WorkerId peer{};
  std::vector<GradEntry> entries{};
};
struct LocalProgress {
  std::vector<PeerGradients> outputs{};  // one per peer; may include this worker itself
  bool done = true;      // the running action has ended; its last outputs are in here
  bool waiting = false;  // with done: a gradient is buffered where it cannot go on
};

// What a walk found: sends that will get something, by the worker that holds them.
struct PeerSends {
  WorkerId peer{};
  std::vector<SendId> sends{};
};

}  // namespace weft::dist_autograd_internal
