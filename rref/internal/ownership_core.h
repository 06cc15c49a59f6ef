// Decides for one worker which RRef values live and which references protect them.
//
// This is a pure core: events go in, actions come out. It has no lock, clock, socket, thread or
// value. Every event appends its actions to `out`. The driver performs them in that order after it
// has released its lock.
//
// The driver itself sends the carriers (calls and replies that hold references). It asks for a
// Reference for each RRef that it encodes, reports a carrier that failed, and hands over the
// references that it decodes. The session makes sure that each carrier is read or discarded at most
// once. Control messages may come repeatedly and in any order.
//
// Thread safety: none; the driver's lock guards it.
// Errors: RRefLost (is_rref_lost), FailedPrecondition (shutting down), Unavailable (dead worker),
// InvalidArgument (a malformed reference, or one of another type), PermissionDenied (a wrong key).
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
  OwnershipCore(WorkerId self, KeySource keys, OwnershipLimits limits = {});
  OwnershipCore(const OwnershipCore&) = delete;
  OwnershipCore& operator=(const OwnershipCore&) = delete;

  WorkerId self() const { return self_; }

  // ---- Creation ----

  // Adds a value that this worker owns: make_rref, and remote() to itself (case 5). The result is
  // its first handle.
  absl::StatusOr<Handle> own(TypeTag type);

  // remote() to another worker (case 1). The caller sends the creation call with both ids. The
  // handle may be used and sent at once; a Confirmed or Lost action follows later.
  absl::StatusOr<Handle> create(WorkerId owner, TypeTag type);

  // At the creator: the call failed or timed out. If the owner's confirmation came first, the
  // creation has succeeded: this returns false and does nothing.
  bool creation_failed(ForkId fork, absl::Status status, Actions& out);

  // At the owner: a creation call has arrived. Call it before the function runs.
  Acceptance accept_creation(WorkerId from, const Creation& creation, Actions& out);

  // At the owner: the function returned (OK) or threw. The error is kept and given to every fetch.
  // Returns false if nobody wants the value any more; then the driver destroys it.
  bool set_value(RRefId rref, absl::Status result, Actions& out);

  // ---- Sending and receiving references ----

  // Makes a new fork for the carrier to `to`, which may be this worker. Until the carrier is read
  // or has failed, the value is protected, even if every handle here is dropped.
  absl::StatusOr<Reference> fork(const Handle& handle, WorkerId to);

  // The carrier of `reference` failed, for any reason. Harmless if the carrier was read.
  void carrier_failed(const Reference& reference, Delivery delivery, Actions& out);

  // A carrier was decoded. Returns one result for each reference, in order. A handle with an error
  // must not be dropped. AllConfirmed{waiter} follows, in these actions or later. If it has an
  // error, the driver still drops the other handles.
  std::vector<Received> receive(WorkerId from, absl::Span<const Reference> references,
                                WaiterId waiter, Actions& out);

  // A carrier arrived, and the driver drops it unread (expired, cancelled, refused).
  void discard(WorkerId from, absl::Span<const Reference> references, Actions& out);

  // The last copy of a handle in this process was destroyed. Unknown handles are ignored.
  void drop(const Handle& handle, Actions& out);

  // ---- Values ----

  // At the owner: worker `from`, which may be this one, wants the value. FetchReady or FetchFailed
  // follows, in these actions or later; after cancel_fetch neither does. PermissionDenied: another
  // worker's `key` is not the RRef's.
  void fetch(WorkerId from, RRefId rref, RRefKey key, FetchTicket ticket, Actions& out);
  void cancel_fetch(RRefId rref, FetchTicket ticket, Actions& out);

  // ---- The group ----

  // A control message from one incarnation of a worker to one incarnation of this one. It changes
  // nothing if `from` is dead or `to` is not this incarnation (BN3).
  void on_message(WorkerId from, WorkerId to, const Message& message, Actions& out);

  // This incarnation of a worker is declared dead. That is never revised; repeats are harmless.
  void peer_dead(WorkerId worker, Actions& out);

  // ---- Shutdown ----

  // Drops every handle here; pending forks go as soon as they are decided. From now on, creating a
  // value or a fork fails. Values that other workers hold stay, and can be fetched, until drained()
  // or close().
  void begin_shutdown(Actions& out);
  bool draining() const { return draining_; }
  // True if no value is owned for others, and no reference is held here or on its way.
  bool drained() const { return owned_.empty() && used_.empty(); }
  // Lists the references that are still held, sorted by RRef.
  std::vector<Leak> leaks() const;
  // Frees every value, drops every fork and fails everything that waits.
  void close(Actions& out);

  // ---- Views ----

  // Whether the owner has confirmed the handle. For an owned handle: whether the value's entry was
  // created and has not ended.
  bool confirmed(const Handle& handle) const;
  // The key of a fork that is held here; 0 for other handles. The owner needs none.
  RRefKey key_of(const Handle& handle) const { return used_.key_of(handle.fork); }
  OwnershipGauges gauges() const;
  // Appends three kinds of workers: those that hold forks of values here, those that own values to
  // which this worker refers, and those whose creations are still awaited here. A worker may appear
  // twice.
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
