// Defines the messages between workers about contexts and backward passes, as plain structs.
//
// A payload (gradients) is opaque here. The class that runs the local graph derives from
// GradientPayload and gets its own object back. A core only moves payloads on. A payload that it
// does not use stays in the message that the caller passed, so that no tensor is destroyed under
// the caller's lock.
//
// Thread safety: plain values.
// Protocol: proto/dist_autograd.proto says what each message means, docs/backward_protocol.md why
// the protocol holds.
#pragma once

#include <compare>
#include <cstdint>
#include <memory>
#include <string>
#include <string_view>
#include <variant>
#include <vector>

#include "absl/status/status.h"
#include "absl/strings/str_cat.h"
#include "absl/time/time.h"
#include "weft/base/ids.h"
#include "weft/base/termination.h"

namespace weft::dist_autograd_internal {

// One backward pass: the k-th that this worker started in this context, from 1.
struct PassId {
  ContextId context{};
  WorkerId initiator{};
  uint64_t k = 0;

  bool valid() const { return context.valid() && initiator.valid() && k != 0; }
  std::string to_string() const {
    return absl::StrCat("pass(", context.to_string(), ",", initiator.to_string(), ",", k, ")");
  }
  friend auto operator<=>(const PassId&, const PassId&) = default;
};

enum class BackwardMode : uint8_t {
  kDefault = 0,   // feed; discover what will get gradients only if something waits
  kAllSends = 1,  // every send of the context must get a gradient; never discover
  kEager = 2,     // discover first, then feed
};

std::string_view to_string(BackwardMode mode);

// One worker's knowledge of the ended passes of one initiator in one context. All passes up to
// `decided` have ended. Those from `complete_from` on that are not in `aborted` were committed.
struct PassHistory {
  enum class Outcome : uint8_t { kUnknown, kCommitted, kAborted };

  WorkerId initiator{};
  uint64_t decided = 0;
  uint64_t complete_from = 1;
  std::vector<uint64_t> aborted{};  // ascending, within [complete_from, decided]

  Outcome outcome(uint64_t k) const;
  // Pass decided + 1 has ended. Only the initiator calls this, for one pass after another.
  void append(bool committed);
  friend bool operator==(const PassHistory&, const PassHistory&) = default;
};

// The number of aborted passes that a history lists. When a pass is removed from the list, the
// outcomes of all passes up to it become unknown.
inline constexpr size_t kMaxAbortedListed = 32;

// Every call and reply that is made under a context carries this.
struct AutogradMetadata {
  ContextId context{};
  SendId send{};                          // invalid: no tensor of the message requires grad
  std::vector<uint32_t> requires_grad{};  // indices of the tensors that do, ascending
  std::vector<PassHistory> histories{};   // tell the receiver which passes are committed
};

struct GradientPayload {
  virtual ~GradientPayload() = default;
};

// The gradients of one recorded transfer. A slot whose gradient is undefined is not in `present`.
// An entry whose `present` is empty says that no gradient will come for this send.
struct GradEntry {
  SendId send{};
  uint32_t slots = 0;
  std::vector<uint32_t> present{};  // ascending, each below `slots`
  std::unique_ptr<GradientPayload> gradients{};
};

// The data that a worker needs to take part in a pass. Every message that can be its first one of
// the pass has it.
struct PassHeader {
  PassId pass{};
  BackwardMode mode = BackwardMode::kDefault;
  bool retain_graph = false;
  absl::Duration budget = absl::InfiniteDuration();  // time until the deadline; set when sent
  std::vector<PassHistory> histories{};
};

// The state of a worker at a moment at which it was idle in the pass.
struct PassReport {
  TerminationReport counts{};
  bool waiting = false;  // a gradient waits here
  // Only in mode all_sends with `waiting`: up to kMaxUnfedListed sends that were not fed.
  std::vector<SendId> unfed{};
};
inline constexpr size_t kMaxUnfedListed = 4;

// Why a pass ended without gradients.
struct PassFailure {
  absl::Status status{};
  WorkerId worker{};   // the worker on which it failed
  WorkerId died{};     // valid: the death of this worker is the reason
  std::string node{};  // name of the autograd node, may be empty
  SendId call{};       // the call whose gradients were being processed, may be invalid
};

// The next three are counted messages: a receiver that gets one becomes active. `number` counts
// them per ordered pair of workers and pass, from 1.
struct GradMessage {
  PassHeader header{};
  uint64_t number = 0;
  std::vector<GradEntry> entries{};
  std::vector<PassReport> reports{};  // piggybacked; the receiver passes them on to the initiator
};
struct ActivateMessage {
  PassHeader header{};
  uint64_t number = 0;
  std::vector<SendId> sends{};
  std::vector<PassReport> reports{};
};
struct SealMessage {
  PassId pass{};
  uint64_t number = 0;
};

// The other messages are not counted.
struct ReportMessage {
  PassId pass{};
  std::vector<PassReport> reports{};
};
struct PublishMessage {
  PassId pass{};
  std::vector<PassHistory> histories{};
};
struct FailMessage {
  PassId pass{};
  PassFailure failure{};
};
struct AbortMessage {
  PassId pass{};
  PassFailure failure{};
};
struct ReleaseContextMessage {
  ContextId context{};
  uint64_t watermark = 0;  // every context of this creator up to this number is released too
};
// To the creator, from a worker that has lost a peer of the context. The release might have come
// through that peer alone.
struct HoldsContextMessage {
  ContextId context{};
};

using AutogradMessage =
    std::variant<GradMessage, ActivateMessage, SealMessage, ReportMessage, PublishMessage,
                 FailMessage, AbortMessage, ReleaseContextMessage, HoldsContextMessage>;

// The context that the message is about.
const ContextId& context_of(const AutogradMessage& message);
// The pass that the message is about; null for the two messages about contexts.
const PassId* pass_of(const AutogradMessage& message);
// The header of a message that can engage its receiver; null for others.
PassHeader* header_of(AutogradMessage& message);
// Whether nobody waits for the message, so that it may be deferred and piggybacked on another one.
bool may_piggyback(const AutogradMessage& message);
// The name of the message's kind: "GRAD", "REPORT" ...
std::string_view kind_of(const AutogradMessage& message);

}  // namespace weft::dist_autograd_internal
