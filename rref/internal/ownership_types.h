// Defines the messages, references, actions and limits of the ownership protocol.
//
// Thread safety: plain values.
// Protocol: docs/rref_protocol.md; proto/rref.proto spells the same messages on the wire.
#pragma once

#include <cstdint>
#include <functional>
#include <optional>
#include <string>
#include <variant>
#include <vector>

#include "absl/status/status.h"
#include "weft/base/ids.h"

namespace weft::rref_internal {

// The type of the value behind an RRef. Both sides must name it equally.
struct TypeTag {
  uint64_t hash = 0;
  std::string name;
  friend bool operator==(const TypeTag&, const TypeTag&) = default;
};

// A random number that its creator chooses for an RRef. Each reference carries it, and the owner
// lets nobody use the value without it. So a worker cannot reach a value by guessing its RRef id.
using RRefKey = uint64_t;
// Makes the key of a new RRef. Nobody may be able to predict it.
using KeySource = std::function<RRefKey(RRefId rref)>;

// One reference as this worker holds it. The owner's own handles have no fork.
struct Handle {
  RRefId rref;
  ForkId fork;

  bool owned() const { return !fork.valid(); }
  friend auto operator<=>(const Handle&, const Handle&) = default;
};

// A reference inside a carrier, a message between workers. The carrier's sender is fork.creator.
struct Reference {
  WorkerId owner;
  RRefId rref;
  ForkId fork;    // the receiver's new fork
  ForkId parent;  // the sender's fork; none if the sender is the owner
  TypeTag type;
  RRefKey key = 0;
  friend bool operator==(const Reference&, const Reference&) = default;
};

// A call whose result stays with the callee.
struct Creation {
  RRefId rref;
  ForkId fork;
  TypeTag type;
  RRefKey key = 0;
  friend bool operator==(const Creation&, const Creation&) = default;
};

// The object of a method call or a fetch.
struct Target {
  RRefId rref;
  TypeTag type;
  RRefKey key = 0;
  friend bool operator==(const Target&, const Target&) = default;
};

// ---- Control messages. Any of them may come twice and in any order (B6, B7). ----
//
// `settled_below` is the user's watermark for this owner. Every id with a smaller number that the
// user issued for RRefs of this owner is decided. That means: the owner has the id in its tables,
// or the owner has seen its end, or its carrier never left.

struct ForkRequest {  // user to owner: register my fork
  RRefId rref;
  ForkId fork;
  uint64_t settled_below = 0;
  RRefKey key = 0;
};
struct ForkAccept {  // owner to user: your fork protects the value from now on
  RRefId rref;
  ForkId fork;
};
enum class RejectReason : uint8_t {
  kFreed = 1,         // the value is gone, or was never created
  kWithdrawn = 2,     // the creator or the parent withdrew it, or this fork has ended already
  kCreatorDied = 3,   // the worker that issued it died before it was registered
  kOverloaded = 4,    // too much waits here for this worker
  kNotTheHolder = 5,  // another worker holds this fork
  kNotCreated = 6,    // its creation failed; the message says why
  kWrongKey = 7,      // the request has another key than the RRef
};
struct ForkReject {  // owner to user: your fork protects nothing; it ends with RRefLost or `error`
  RRefId rref;
  ForkId fork;
  RejectReason reason = RejectReason::kFreed;
  absl::Status error = {};  // why the creation failed; only with kNotCreated
};
struct ChildAccept {  // child's holder to parent's worker: confirmed, refused or dropped unread
  RRefId rref;
  ForkId fork;
};
struct UserDelete {  // user to owner: my confirmed fork ends; none of its children is undecided
  RRefId rref;
  ForkId fork;
  bool ack_wanted = false;
  uint64_t settled_below = 0;
};
struct DeleteAck {  // owner to user: acknowledges UserDelete, or removes a recall's tombstone
  RRefId rref;
  ForkId fork;
};
// The carrier of `fork` failed. If the fork's creator sends this to the owner: a fork that is not
// registered yet never will be. If the owner sends it to the holder (a recall): if the holder has
// not read the carrier, it never will.
struct CancelFork {
  WorkerId owner;
  RRefId rref;
  ForkId fork;
  bool creation = false;  // the fork was made by remote(), so the RRef itself is withdrawn too
  uint64_t settled_below = 0;
  absl::Status error = {};  // only with `creation`: why it failed, for all that wait for the value
};
struct CancelAck {
  WorkerId owner;
  RRefId rref;
  ForkId fork;
  bool registered = false;  // the fork came in time and stays
};
struct Settled {  // user to owner, if no other message would carry the watermark
  uint64_t settled_below = 0;
};

using Message = std::variant<ForkRequest, ForkAccept, ForkReject, ChildAccept, UserDelete,
                             DeleteAck, CancelFork, CancelAck, Settled>;

// ---- Actions: the driver performs them after an event, in their order, outside its lock. ----

using WaiterId = uint64_t;     // names one received carrier; the driver chooses it
using FetchTicket = uint64_t;  // names one call that wants a value; unique; the driver chooses it

struct Send {
  WorkerId to;
  Message message;
};
struct Free {  // destroy the value, if there is one; comes at most once for each RRef
  RRefId rref;
};
struct Confirmed {  // this handle protects its value from now on
  Handle handle;
};
struct AllConfirmed {  // B5: user code whose arguments came in this carrier may start; or it fails
  WaiterId waiter = 0;
  absl::Status status;
};
// Each use of this handle now fails with `status`. If the handle is owned, this holds for each
// handle of this RRef.
struct Lost {
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
  uint32_t tombstones_per_creator = 65536;  // past it the watermark is raised: undecided ids end
  uint32_t withdrawn_per_owner = 65536;     // past it a recall is answered with "registered"
  uint32_t parked_per_worker = 4096;        // waiting fetches, requests and references of a worker
  // Errors of creations that failed, kept at an owner per creator. Past the limit the oldest is
  // forgotten; late references then get RRefLost.
  uint32_t errors_per_creator = 1024;
  // Forks of values here that one worker may hold. Past the limit its creations are refused.
  // References that others send it are still listed, because a refusal would lose them.
  uint64_t forks_per_worker = 1'000'000;
};

struct OwnershipGauges {
  uint64_t owners = 0;            // values owned here (created, not freed)
  uint64_t forks = 0;             // listed forks of those, held by workers or on their way
  uint64_t users = 0;             // forks held here of values owned elsewhere
  uint64_t pending_users = 0;     // of those: not confirmed by the owner
  uint64_t pending_children = 0;  // forks sent from here, not decided
  uint64_t tombstones = 0;
  uint64_t parked_fetches = 0;
  uint64_t parked_forks = 0;      // requests and references that came before the creation
  uint64_t stale_messages = 0;    // counter: from a dead, or to another, incarnation
  uint64_t refused_messages = 0;  // counter: from a worker that may not send this about that fork
};

// One reference that is still held, for the report at shutdown.
struct Leak {
  enum class Kind { kHeldByUser, kHeldHere, kUserFork, kPendingChild, kAwaitsCreation };
  Kind kind = Kind::kHeldByUser;
  RRefId rref;
  TypeTag type;
  // kHeldByUser: the holder. kHeldHere, kUserFork: the owner. kPendingChild: the receiver.
  // kAwaitsCreation: the worker that asked.
  WorkerId worker;
  uint64_t count = 0;  // forks or handles

  std::string to_string() const;
};

// RRefLost: the reference protects nothing any more. The code is Unavailable with a payload of its
// own, and the status says that nothing ran. `worker` is the worker whose death or decision ended
// the reference.
absl::Status rref_lost_error(RRefId rref, WorkerId worker, std::string_view why);
// PermissionDenied: worker `from` has named this RRef with another key than its own.
absl::Status wrong_key_error(RRefId rref, WorkerId from);
// The `worker` of an RRefLost that was made here. Empty for any other error, also for an RRefLost
// of another worker: the payload does not travel.
std::optional<WorkerId> rref_lost_to(const absl::Status& status);
bool is_rref_lost(const absl::Status& status);
std::string_view to_string(RejectReason reason);

// For logs and scenarios: "FORK_REQUEST rref(w1.1,1) fork(w1.1,4)".
std::string to_string(const Message& message);

}  // namespace weft::rref_internal
