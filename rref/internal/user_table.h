// Holds the user's side of the RRef protocol: forks of values that live elsewhere, and forks that
// this worker has sent and that are undecided.
//
// A fork is deleted at its owner only when the owner knows it (B2) and none of its children is
// undecided (B3). Until then it stays here, although its last handle is gone.
//
// Thread safety: none; part of the core.
// Protocol: docs/rref_protocol.md, guarantees G1 to G5.
#pragma once

#include <map>
#include <optional>
#include <set>
#include <vector>

#include "absl/status/statusor.h"
#include "weft/rref/internal/ownership_step.h"

namespace weft::rref_internal {

class UserTable {
 public:
  UserTable(WorkerId self, const OwnershipLimits& limits, IdSource& ids)
      : self_(self), limits_(limits), ids_(ids) {}

  Handle create(WorkerId owner, TypeTag type);
  bool creation_failed(ForkId fork, const absl::Status& status, Step& step);

  absl::StatusOr<Reference> make_child(const Handle& handle, WorkerId to);
  void carrier_failed(const Reference& reference, Delivery delivery, Step& step);
  Received receive(const Reference& reference, std::optional<WaiterId> waiter, Step& step);
  void discard(const Reference& reference, Step& step);
  void drop(ForkId fork, Step& step);
  // Drops every handle, for the shutdown. From now on each USER_DELETE asks for a DELETE_ACK.
  void drop_all_handles(Step& step);

  // Each returns false if the sender may not send this about that fork; then nothing has changed.
  bool on_fork_accept(WorkerId from, const ForkAccept& message, Step& step);
  bool on_fork_reject(WorkerId from, const ForkReject& message, Step& step);
  bool on_child_accept(WorkerId from, const ChildAccept& message, Step& step);
  bool on_delete_ack(WorkerId from, const DeleteAck& message, Step& step);
  bool on_recall(WorkerId from, const CancelFork& message, Step& step);
  bool on_cancel_ack(WorkerId from, const CancelAck& message, Step& step);

  void peer_dead(WorkerId worker, Step& step);
  void close(Step& step);

  bool confirmed(ForkId fork) const;
  RRefKey key_of(ForkId fork) const {
    const auto it = forks_.find(fork);
    return it == forks_.end() ? 0 : it->second.key;
  }
  bool empty() const { return forks_.empty() && children_.empty(); }
  void fill(OwnershipGauges& gauges) const;
  // Appends the owners of the values to which this worker refers.
  void append_ties(std::vector<WorkerId>& workers) const {
    for (const auto& [owner, exposure] : exposures_) workers.push_back(owner);
  }
  void report(std::vector<Leak>& leaks) const;

 private:
  enum class State : uint8_t {
    kPending,     // the owner has not confirmed it
    kCancelling,  // its creation failed here, CANCEL_FORK was sent; no handle may use it
    kRefused,     // the owner will never list it; kept while a child of it is undecided
    kConfirmed,
    kDeleting,  // USER_DELETE was sent, DELETE_ACK has not come
  };
  struct Fork {
    RRefId rref;
    WorkerId owner;
    TypeTag type;
    RRefKey key = 0;
    State state = State::kPending;
    bool creation = false;  // made by remote() here
    bool dropped = false;   // no handle is left
    uint64_t children = 0;  // number of undecided children
    std::optional<WaiterId> waiter;
  };
  struct Child {  // a fork that was sent from here and is undecided
    RRefId rref;
    WorkerId owner;
    ForkId parent;
    WorkerId to;
    TypeTag type;
    bool cancelling = false;  // CANCEL_FORK was sent, CANCEL_ACK has not come
  };
  // The state from which the watermark for one owner follows (docs, "Tombstones").
  struct Exposure {
    std::set<uint64_t> open;  // numbers issued for RRefs of this owner and undecided
    uint64_t highest = 0;     // the highest number issued for them so far
    uint64_t announced = 0;   // the watermark sent last
    uint64_t forks = 0;       // forks of this owner held here; their deletes carry the watermark
  };
  using Forks = std::map<ForkId, Fork>;
  using Children = std::map<ForkId, Child>;

  bool use_up_recall(ForkId fork);
  uint64_t settled_below(WorkerId owner);
  void issue(WorkerId owner, uint64_t number);
  void decide(WorkerId owner, uint64_t number, Step& step);
  void announce_last(WorkerId owner, Step& step);
  void confirm(Forks::iterator it, Step& step);
  void lose(Forks::iterator it, const absl::Status& status, Step& step);
  void tell_lost(Forks::iterator it, const absl::Status& status, Step& step);
  void refuse(Forks::iterator it, const absl::Status& status, Step& step);
  void end_refused(Forks::iterator it, Step& step);
  void delete_if_done(Forks::iterator it, Step& step);
  void erase(Forks::iterator it, Step& step);
  void release_child(Children::iterator it, Step& step);
  void tell_parent(RRefId rref, ForkId fork, WorkerId owner, Step& step);

  const WorkerId self_;
  const OwnershipLimits limits_;
  IdSource& ids_;
  bool draining_ = false;
  Forks forks_;
  Children children_;
  std::map<WorkerId, Exposure> exposures_;
  // Tombstones of forks that their owner recalled before this worker read them. The carrier, or a
  // DELETE_ACK, removes them.
  std::set<ForkId> withdrawn_;
  std::map<WorkerId, uint32_t> withdrawn_by_;
  uint64_t undecided_ = 0;  // forks that are pending or cancelling
};

}  // namespace weft::rref_internal
