// The words of the ownership protocol: messages, references on the wire, and what the core asks
// for.
//
// Thread safety: plain values.
// Protocol: docs/rref_protocol.md; proto/rref.proto spells the same messages on the wire.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <variant>
#include <vector>

#include "absl/status/status.h"
#include "weft/base/ids.h"

namespace weft::rref_internal {

// The type of the value behind an RRef, as both sides must spell it.
struct TypeTag {
  uint64_t hash = 0;
  std::string name;
  friend bool operator==(const TypeTag&, const TypeTag&) = default;
};

// One reference as this worker holds it. The owner's own handles have no fork.
struct Handle {
  RRefId rref;
  ForkId fork;

  bool owned() const { return !fork.valid(); }
  friend auto operator<=>(const Handle&, const Handle&) = default;
};

// A reference inside a message between workers: the carrier. The sender is fork.creator.
struct Reference {
  WorkerId owner;
  RRefId rref;
  ForkId fork;    // the receiver's new share
  ForkId parent;  // the sender's share; none when the sender is the owner
  TypeTag type;
  friend bool operator==(const Reference&, const Reference&) = default;
};

// ---- Control messages. Any of them may come twice and in any order (B6, B7). ----
// `settled_below`, user to owner: every id with a smaller number that the sender issued for RRefs
// of this owner is decided: the owner has it in its tables, or has seen its end, or it never left.

struct ForkRequest {  // user to owner: register my fork
  RRefId rref;
  ForkId fork;
  uint64_t settled_below = 0;
};
struct ForkAccept {  // owner to user: your fork protects the value from now on
  RRefId rref;
  ForkId fork;
};
enum class RejectReason : uint8_t {
  kFreed = 1,         // the value is gone, or was never created
  kWithdrawn = 2,     // the creator or the parent withdrew it, or this fork has ended already
  kCreatorDied = 3,   // the worker that issued it died before it was registered
  kOverloaded = 4,    // too much is parked here for this worker
  kNotTheHolder = 5,  // another worker holds this fork
  kNotCreated = 6,    // its creation failed; the message says why
};
struct ForkReject {  // owner to user: your fork protects nothing: RRefLost, or `error`
  RRefId rref;
  ForkId fork;
  RejectReason reason = RejectReason::kFreed;
  absl::Status error = {};  // why the creation failed; only with kNotCreated
};
struct ChildAccept {  // child's holder to parent: decided (confirmed, refused or unread); let go
  RRefId rref;
  ForkId fork;
};
struct UserDelete {  // user to owner: my confirmed fork ends; none of its children is undecided
  RRefId rref;
  ForkId fork;
  bool ack_wanted = false;
  uint64_t settled_below = 0;
};
struct DeleteAck {  // owner to user
  RRefId rref;
  ForkId fork;
};
// The carrier of `fork` failed. To the owner, from the fork's creator: if it is not registered, it
// never will be. From the owner to the holder: if you have not read it, you never will.
struct CancelFork {
  WorkerId owner;
  RRefId rref;
  ForkId fork;
  bool creation = false;  // the fork of remote(): with it the RRef itself is withdrawn
  uint64_t settled_below = 0;
  absl::Status error = {};  // of a creation: why it failed, for all that wait for the value
};
struct CancelAck {
  WorkerId owner;
  RRefId rref;
  ForkId fork;
  bool registered = false;  // it came in time and stays
};
struct Settled {  // user to owner, where no other message would carry the watermark
  uint64_t settled_below = 0;
};

using Message = std::variant<ForkRequest, ForkAccept, ForkReject, ChildAccept, UserDelete,
                             DeleteAck, CancelFork, CancelAck, Settled>;

// ---- Actions: what the driver does after a step, in this order, outside its lock. ----

using WaiterId = uint64_t;     // chosen by the driver: one received carrier
using FetchTicket = uint64_t;  // chosen by the driver: one call that wants a value; unique

struct Send {
  WorkerId to;
  Message message;
};
struct Free {  // destroy the value, if there is one; at most once for each RRef
  RRefId rref;
};
struct Confirmed {  // this handle protects its value from now on
  Handle handle;
};
struct AllConfirmed {  // B5: user code whose arguments came in this carrier may start, or must fail
  WaiterId waiter = 0;
  absl::Status status;
};
struct Lost {  // each use of this handle (owned: each handle of this RRef) now fails with `status`
  Handle handle;
  absl::Status status;
};
struct FetchReady {
  FetchTicket ticket = 0;
  RRefId rref;
};
struct FetchFailed {
  FetchTicket ticket = 0;
  RRefId rref;
  absl::Status status;
};

using Action = std::variant<Send, Free, Confirmed, AllConfirmed, Lost, FetchReady, FetchFailed>;
using Actions = std::vector<Action>;

// ---- Views ----

struct OwnershipLimits {
  uint32_t tombstones_per_creator = 65536;  // then the watermark is forced up: undecided ids end
  uint32_t withdrawn_per_owner = 65536;     // then an unread carrier is not withdrawn any more
  uint32_t parked_per_worker = 4096;        // fetches, requests and references before creation
  // Errors of creations that failed; then the oldest is forgotten: late references are RRefLost.
  uint32_t errors_per_creator = 1024;
  // Of values here that one worker may hold: then it creates no more. References that others send
  // it are not refused: they would be lost.
  uint64_t forks_per_worker = 1'000'000;
};

struct OwnershipGauges {
  uint64_t owners = 0;            // values owned here (created, not freed)
  uint64_t forks = 0;             // forks that other workers, or carriers to them, hold of those
  uint64_t users = 0;             // forks held here of values owned elsewhere
  uint64_t pending_users = 0;     // of those: not confirmed by the owner
  uint64_t pending_children = 0;  // forks sent from here, not decided
  uint64_t tombstones = 0;
  uint64_t parked_fetches = 0;
  uint64_t parked_forks = 0;      // requests and references that came before the creation
  uint64_t stale_messages = 0;    // counter: from or to an ended incarnation of a worker
  uint64_t refused_messages = 0;  // counter: from a worker that has no say in that fork
};

// One thing that is still held, for the report at shutdown.
struct Leak {
  enum class Kind { kHeldByUser, kHeldHere, kUserFork, kPendingChild, kAwaitsCreation };
  Kind kind = Kind::kHeldByUser;
  RRefId rref;
  TypeTag type;
  WorkerId worker;  // the holder; for what is held here, the owner; for a child, where it was sent
  uint64_t count = 0;  // forks or handles

  std::string to_string() const;
};

// RRefLost: the reference protects nothing any more. Code Unavailable with a payload of its own,
// and nothing ran; `worker` is the one whose death or decision it was.
absl::Status rref_lost_error(RRefId rref, WorkerId worker, std::string_view why);
// That worker, if this is a RRefLost that was made here: the payload does not travel.
std::optional<WorkerId> rref_lost_to(const absl::Status& status);
bool is_rref_lost(const absl::Status& status);
std::string_view to_string(RejectReason reason);

// For logs and scenarios: "FORK_REQUEST rref(w1.1,1) fork(w1.1,4)".
std::string to_string(const Message& message);

}  // namespace weft::rref_internal
