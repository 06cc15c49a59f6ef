// Decides which RRef values live and which references protect them: one worker's share of the
// protocol, pure: events in, actions out; no lock, clock, socket, thread or value.
//
// Every event appends its actions to `out`; the driver performs them in that order after it has let
// go of its lock. Carriers (calls and replies that hold references) are the driver's own messages:
// it asks for a Reference for each RRef that it encodes, reports what became of the carrier, and
// hands over what it decodes. Each carrier is read or discarded at most once (the session sees to
// that); control messages may be repeated and reordered at will.
//
// Thread safety: none; the driver's lock guards it.
// Errors: RRefLost (is_rref_lost), FailedPrecondition (shutting down), Unavailable (dead worker),
// InvalidArgument (a malformed reference, or one of another type).
// Protocol: docs/rref_protocol.md.
#pragma once

#include <string>
#include <vector>

#include "absl/status/statusor.h"
#include "absl/types/span.h"
#include "weft/rref/internal/owner_table.h"
#include "weft/rref/internal/user_table.h"

namespace weft::rref_internal {

class OwnershipCore {
 public:
  explicit OwnershipCore(WorkerId self, OwnershipLimits limits = {});
  OwnershipCore(const OwnershipCore&) = delete;
  OwnershipCore& operator=(const OwnershipCore&) = delete;

  WorkerId self() const { return self_; }

  // ---- Creation ----

  // A value of this worker's own: make_rref, and remote() to itself (case 5). Comes with one
  // handle.
  absl::StatusOr<Handle> own(TypeTag type);

  // remote() to another worker (case 1). The caller sends the creation call with both ids; the
  // handle may be used and sent at once, and is Confirmed or Lost later.
  absl::StatusOr<Handle> create(WorkerId owner, TypeTag type);

  // At the creator: the call failed or timed out before the owner's confirmation. Returns false,
  // and does nothing, if the confirmation came first: then the creation has succeeded.
  bool creation_failed(ForkId fork, absl::Status status, Actions& out);

  // At the owner, before the function runs.
  Acceptance accept_creation(WorkerId from, RRefId rref, ForkId fork, const TypeTag& type,
                             Actions& out);

  // At the owner: the function returned (OK) or threw (kept, and given to every fetch). Returns
  // false if nobody wants the value any more: the driver destroys it.
  bool set_value(RRefId rref, absl::Status result, Actions& out);

  // ---- Sending and receiving references ----

  // A new fork for the carrier to `to`, which may be this worker. Until the carrier is read or has
  // failed, the value is protected although every handle here may be dropped.
  absl::StatusOr<Reference> fork(const Handle& handle, WorkerId to);

  // The carrier failed, whatever the reason. Harmless if it was read.
  void carrier_failed(const Reference& reference, Delivery delivery, Actions& out);

  // A carrier was decoded. One result for each reference, in order; a handle with an error must not
  // be dropped. AllConfirmed{waiter} follows, in these actions or later; when it carries an error
  // the driver still drops the other handles.
  std::vector<Received> receive(WorkerId from, absl::Span<const Reference> references,
                                WaiterId waiter, Actions& out);

  // A carrier arrived and is dropped unread (expired, cancelled, refused).
  void discard(WorkerId from, absl::Span<const Reference> references, Actions& out);

  // The last copy of a handle in this process died. Unknown handles are ignored.
  void drop(const Handle& handle, Actions& out);

  // ---- Values ----

  // At the owner: somebody (this worker included) wants the value. FetchReady or FetchFailed
  // follows, in these actions or later.
  void fetch(WorkerId from, RRefId rref, FetchTicket ticket, Actions& out);
  void cancel_fetch(RRefId rref, FetchTicket ticket, Actions& out);

  // ---- The group ----

  // A control message from one incarnation of a worker to one incarnation of this one (BN3: others
  // change nothing).
  void on_message(WorkerId from, WorkerId to, const Message& message, Actions& out);

  // The death record on a life of a worker; never revised, repeats are harmless.
  void peer_dead(WorkerId worker, Actions& out);

  // ---- Shutdown ----

  // Drops every handle here, pending ones as soon as they are decided; making or forking fails from
  // now on. Values that others hold stay and can be fetched until drained() or close().
  void begin_shutdown(Actions& out);
  bool draining() const { return draining_; }
  // Nothing is owned for others, held, or on its way.
  bool drained() const { return owned_.empty() && used_.empty(); }
  // Who still holds what. Sorted by RRef.
  std::vector<Leak> leaks() const;
  // Gives everything up: frees every value, fails everything that waits.
  void close(Actions& out);

  // ---- Views ----

  // Whether the owner has confirmed it; an owned handle: whether it was created.
  bool confirmed(const Handle& handle) const;
  OwnershipGauges gauges() const;
  // Workers that hold references to values here, own what is referred to here, or are to create
  // what others have asked for; some twice.
  void append_ties(std::vector<WorkerId>& workers) const {
    owned_.append_ties(workers);
    used_.append_ties(workers);
  }

 private:
  Step step(Actions& out) { return Step(incarnations_, waiters_, out); }
  absl::Status check(WorkerId from, const Reference& reference) const;
  absl::Status check_open() const;
  bool handle_message(WorkerId from, const Message& message, Step& step);

  const WorkerId self_;
  IdSource ids_;
  PeerIncarnations incarnations_;
  Waiters waiters_;
  OwnerTable owned_;
  UserTable used_;
  bool draining_ = false;
  uint64_t stale_messages_ = 0;
  uint64_t refused_messages_ = 0;
};

}  // namespace weft::rref_internal
