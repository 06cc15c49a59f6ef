// The user's side of the RRef protocol: forks of values that live elsewhere, and forks on their
// way.
//
// A fork is deleted at its owner only when the owner knows it (B2) and none of the forks made from
// it is undecided (B3); until then it stays here although its last handle is gone.
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
  // Every handle is gone at once; deletes are acknowledged from here on.
  void drop_all_handles(Step& step);

  // Each returns false if the sender has no say in that fork; then nothing changed.
  bool on_fork_accept(WorkerId from, const ForkAccept& message, Step& step);
  bool on_fork_reject(WorkerId from, const ForkReject& message, Step& step);
  bool on_child_accept(WorkerId from, const ChildAccept& message, Step& step);
  bool on_delete_ack(WorkerId from, const DeleteAck& message, Step& step);
  bool on_recall(WorkerId from, const CancelFork& message, Step& step);
  bool on_cancel_ack(WorkerId from, const CancelAck& message, Step& step);

  void peer_dead(WorkerId worker, Step& step);
  void close(Step& step);

  bool confirmed(ForkId fork) const;
  bool empty() const { return forks_.empty() && children_.empty(); }
  void fill(OwnershipGauges& gauges) const;
  // Owners of what is held here.
  void append_ties(std::vector<WorkerId>& workers) const {
    for (const auto& [owner, exposure] : exposures_) workers.push_back(owner);
  }
  void report(std::vector<Leak>& leaks) const;

 private:
  enum class State : uint8_t {
    kPending,     // the owner has not confirmed it
    kCancelling,  // its creation failed here, the owner is asked; no handle may use it
    kRefused,     // lost; kept while a child of it is undecided
    kConfirmed,
    kDeleting,  // USER_DELETE sent, its acknowledgement awaited
  };
  struct Fork {
    RRefId rref;
    WorkerId owner;
    TypeTag type;
    State state = State::kPending;
    bool creation = false;  // made by remote() here
    bool dropped = false;   // no handle is left
    uint64_t children = 0;  // undecided ones
    std::optional<WaiterId> waiter;
  };
  struct Child {  // a fork sent from here whose fate is open
    RRefId rref;
    WorkerId owner;
    ForkId parent;
    WorkerId to;
    TypeTag type;
    bool cancelling = false;
  };
  // What one owner may remember of the ids issued here.
  struct Exposure {
    std::set<uint64_t> open;  // issued for RRefs of this owner and undecided
    uint64_t highest = 0;     // issued so far
    uint64_t announced = 0;   // the watermark sent last
    uint64_t forks = 0;       // of this owner held here: their deletes will carry the watermark
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
  // Forks that their owner recalled before they were read here; used up by the carrier.
  std::set<ForkId> withdrawn_;
  std::map<WorkerId, uint32_t> withdrawn_by_;
  uint64_t undecided_ = 0;  // forks that are pending or cancelling
};

}  // namespace weft::rref_internal
