#include "weft/rref/internal/user_table.h"

#include <algorithm>
#include <iterator>
#include <utility>

#include "absl/strings/str_cat.h"
#include "weft/base/faults/breakage.h"

namespace weft::rref_internal {

// Case 1 at the creator. Only the RRef's number is issued: it and its fork are decided together.
Handle UserTable::create(WorkerId owner, TypeTag type) {
  const Handle handle{ids_.rref(), ids_.fork()};
  Fork& fork = forks_[handle.fork];
  fork.rref = handle.rref;
  fork.owner = owner;
  fork.type = std::move(type);
  fork.key = ids_.key(handle.rref);
  fork.creation = true;
  ++undecided_;
  issue(owner, handle.rref.number);
  ++exposures_[owner].forks;
  return handle;
}

// BX6, BN6: the outcome of this creation is unknown here. It ends confirmed or absent on both
// sides, and the owner says which. The handles fail at once and for good.
bool UserTable::creation_failed(ForkId fork, const absl::Status& status, Step& step) {
  auto it = forks_.find(fork);
  if (it == forks_.end() || it->second.state != State::kPending || !it->second.creation) {
    return false;
  }
  it->second.state = State::kCancelling;
  if (!it->second.dropped) step.lose(Handle{it->second.rref, fork}, status, it->second.waiter);
  it->second.dropped = true;
  const WorkerId owner = it->second.owner;
  if (!WEFT_BREAK(creation_not_cancelled)) {
    step.send(owner, CancelFork{owner, it->second.rref, fork, true, settled_below(owner), status});
  }
  return true;
}

absl::StatusOr<Reference> UserTable::make_child(const Handle& handle, WorkerId to) {
  auto it = forks_.find(handle.fork);
  if (it == forks_.end() || it->second.dropped) {
    return rref_lost_error(handle.rref, self_, "this handle was dropped or lost");
  }
  const ForkId child = ids_.fork();
  ++it->second.children;
  children_[child] = Child{it->second.rref, it->second.owner, handle.fork, to, it->second.type};
  issue(it->second.owner, child.number);
  return Reference{it->second.owner, it->second.rref, child,
                   handle.fork,      it->second.type, it->second.key};
}

// BN5: if the carrier may have left, the parent stays until the owner has answered CANCEL_FORK.
void UserTable::carrier_failed(const Reference& reference, Delivery delivery, Step& step) {
  auto it = children_.find(reference.fork);
  if (it == children_.end()) return;
  if (delivery == Delivery::kNeverSent) {
    if (!WEFT_BREAK(unsent_child_stays)) release_child(it, step);
  } else if (!it->second.cancelling) {
    it->second.cancelling = true;
    const WorkerId owner = it->second.owner;
    step.send(owner,
              CancelFork{owner, it->second.rref, reference.fork, false, settled_below(owner)});
  }
}

Received UserTable::receive(const Reference& reference, std::optional<WaiterId> waiter,
                            Step& step) {
  const Handle handle{reference.rref, reference.fork};
  const auto refuse = [&](absl::Status status) {
    step.decide(waiter, status);
    return Received{handle, std::move(status)};
  };
  if (step.dead(reference.owner)) {
    return refuse(rref_lost_error(handle.rref, reference.owner, "its owner is dead"));
  }
  if (forks_.contains(handle.fork)) {
    return refuse(
        absl::AlreadyExistsError(absl::StrCat(handle.fork.to_string(), " was received before")));
  }
  const bool from_owner = handle.fork.creator == reference.owner;
  if (from_owner && use_up_recall(handle.fork)) {
    return refuse(rref_lost_error(handle.rref, reference.owner, "its owner withdrew it"));
  }
  auto it = forks_.emplace(handle.fork, Fork()).first;
  Fork& fork = it->second;
  fork.rref = handle.rref;
  fork.owner = reference.owner;
  fork.type = reference.type;
  fork.key = reference.key;
  fork.waiter = waiter;
  ++exposures_[fork.owner].forks;
  ++undecided_;
  if (from_owner) {
    confirm(it, step);  // case 3: the owner listed it before the carrier left
  } else {
    step.send(fork.owner,
              ForkRequest{fork.rref, handle.fork, settled_below(fork.owner), fork.key});  // case 4
  }
  return {handle, absl::OkStatus()};
}

// The carrier came but is dropped unread. Nobody here will ask for this fork, so it is decided now.
void UserTable::discard(const Reference& reference, Step& step) {
  if (reference.fork.creator != reference.owner) {
    tell_parent(reference.rref, reference.fork, reference.owner, step);
  } else if (!use_up_recall(reference.fork) && !forks_.contains(reference.fork)) {
    step.send(reference.owner,
              UserDelete{reference.rref, reference.fork, false, settled_below(reference.owner)});
    announce_last(reference.owner, step);
  }
}

void UserTable::drop(ForkId fork, Step& step) {
  auto it = forks_.find(fork);
  if (it == forks_.end() || it->second.dropped) return;
  it->second.dropped = true;
  delete_if_done(it, step);
}

void UserTable::drop_all_handles(Step& step) {
  draining_ = true;
  for (auto it = forks_.begin(); it != forks_.end();) {
    auto next = std::next(it);
    it->second.dropped = true;
    delete_if_done(it, step);
    it = next;
  }
}

bool UserTable::on_fork_accept(WorkerId from, const ForkAccept& message, Step& step) {
  auto it = forks_.find(message.fork);
  if (it == forks_.end()) return true;
  if (it->second.owner != from) return false;
  if (it->second.state != State::kPending && it->second.state != State::kCancelling) return true;
  confirm(it, step);
  return true;
}

bool UserTable::on_fork_reject(WorkerId from, const ForkReject& message, Step& step) {
  auto it = forks_.find(message.fork);
  if (it == forks_.end()) return true;
  if (it->second.owner != from) return false;
  if (it->second.state != State::kPending || it->second.creation) return true;
  refuse(it,
         message.error.ok() ? rref_lost_error(message.rref, from, to_string(message.reason))
                            : message.error,
         step);
  return true;
}

bool UserTable::on_child_accept(WorkerId from, const ChildAccept& message, Step& step) {
  auto it = children_.find(message.fork);
  if (it == children_.end()) return true;
  if (it->second.to != from) return false;
  release_child(it, step);
  return true;
}

bool UserTable::on_delete_ack(WorkerId from, const DeleteAck& message, Step& step) {
  if (message.fork.creator == from && use_up_recall(message.fork)) return true;
  auto it = forks_.find(message.fork);
  if (it == forks_.end()) return true;
  if (it->second.owner != from) return false;
  if (it->second.state == State::kDeleting) erase(it, step);
  return true;
}

// The owner asks whether this worker has read a fork's carrier. If not, a tombstone makes sure that
// it never will.
bool UserTable::on_recall(WorkerId from, const CancelFork& message, Step& step) {
  if (message.owner != from || message.fork.creator != from) return false;
  bool registered = forks_.contains(message.fork);
  if (!registered && !withdrawn_.contains(message.fork)) {
    uint32_t& count = withdrawn_by_[from];
    if (count >= limits_.withdrawn_per_owner) {
      registered = true;  // no room for the tombstone: the owner keeps the fork, which is safe
    } else {
      withdrawn_.insert(message.fork);
      ++count;
    }
  }
  step.send(from, CancelAck{from, message.rref, message.fork, registered});
  return true;
}

bool UserTable::on_cancel_ack(WorkerId from, const CancelAck& message, Step& step) {
  if (auto child = children_.find(message.fork); child != children_.end()) {
    if (child->second.owner != from || !child->second.cancelling) return false;
    release_child(child, step);
    return true;
  }
  auto it = forks_.find(message.fork);
  if (it == forks_.end()) return true;
  if (it->second.owner != from) return false;
  if (it->second.state != State::kCancelling) return true;
  if (message.registered) {
    confirm(it, step);
  } else {
    refuse(it, absl::OkStatus(), step);  // its handles have failed already
  }
  return true;
}

void UserTable::peer_dead(WorkerId worker, Step& step) {
  // BN1: if the dead worker is the owner, its forks and everything that waits for them end here.
  for (auto it = forks_.begin(); it != forks_.end();) {
    auto next = std::next(it);
    if (it->second.owner == worker && !WEFT_BREAK(dead_owner_ignored)) {
      lose(it, rref_lost_error(it->second.rref, worker, "its owner is dead"), step);
    }
    it = next;
  }
  for (auto it = children_.begin(); it != children_.end();) {
    auto next = std::next(it);
    if (it->second.owner == worker) {
      children_.erase(it);  // its parent had the same owner and is gone too
    } else if (it->second.to == worker && !WEFT_BREAK(dead_child_holder_ignored)) {
      release_child(it, step);  // S9: on that death, the owner removes or refuses the child
    }
    it = next;
  }
  exposures_.erase(worker);
  withdrawn_.erase(withdrawn_.lower_bound(ForkId{worker, 0}),
                   withdrawn_.upper_bound(ForkId{worker, UINT64_MAX}));
  withdrawn_by_.erase(worker);
}

void UserTable::close(Step& step) {
  const absl::Status status =
      absl::CancelledError(absl::StrCat(self_.to_string(), " has shut down"));
  for (const auto& [id, fork] : forks_) {
    if (!fork.dropped) step.lose(Handle{fork.rref, id}, status, fork.waiter);
  }
  forks_.clear();
  children_.clear();
  exposures_.clear();
  withdrawn_.clear();
  withdrawn_by_.clear();
  undecided_ = 0;
}

bool UserTable::confirmed(ForkId fork) const {
  auto it = forks_.find(fork);
  return it != forks_.end() && it->second.state == State::kConfirmed;
}

void UserTable::fill(OwnershipGauges& gauges) const {
  gauges.users = forks_.size();
  gauges.pending_users = undecided_;
  gauges.pending_children = children_.size();
  gauges.tombstones += withdrawn_.size();
}

void UserTable::report(std::vector<Leak>& leaks) const {
  struct Line {
    TypeTag type;
    uint64_t count = 0;
  };
  std::map<std::pair<RRefId, WorkerId>, Line> users;
  std::map<std::pair<RRefId, WorkerId>, Line> children;
  for (const auto& [id, fork] : forks_) {
    Line& line = users[{fork.rref, fork.owner}];
    line.type = fork.type;
    ++line.count;
  }
  for (const auto& [id, child] : children_) {
    Line& line = children[{child.rref, child.to}];
    line.type = child.type;
    ++line.count;
  }
  for (const auto& [key, line] : users) {
    leaks.push_back({Leak::Kind::kUserFork, key.first, line.type, key.second, line.count});
  }
  for (const auto& [key, line] : children) {
    leaks.push_back({Leak::Kind::kPendingChild, key.first, line.type, key.second, line.count});
  }
}

bool UserTable::use_up_recall(ForkId fork) {
  if (withdrawn_.erase(fork) == 0) return false;
  auto count = withdrawn_by_.find(fork.creator);
  if (--count->second == 0) withdrawn_by_.erase(count);
  return true;
}

// Returns the watermark for the next message to this owner. The caller must send it, because it is
// noted as announced.
uint64_t UserTable::settled_below(WorkerId owner) {
  Exposure& exposure = exposures_[owner];
  exposure.announced = exposure.open.empty() || WEFT_BREAK(watermark_ignores_undecided)
                           ? ids_.next()
                           : *exposure.open.begin();
  return exposure.announced;
}

void UserTable::issue(WorkerId owner, uint64_t number) {
  Exposure& exposure = exposures_[owner];
  exposure.open.insert(number);
  exposure.highest = std::max(exposure.highest, number);
}

void UserTable::decide(WorkerId owner, uint64_t number, Step& step) {
  auto it = exposures_.find(owner);
  if (it == exposures_.end()) return;
  it->second.open.erase(number);
  announce_last(owner, step);
}

// When no fork of this owner is left here, no later delete will carry the watermark. If the last
// delete has not carried the newest one either, SETTLED does.
void UserTable::announce_last(WorkerId owner, Step& step) {
  auto it = exposures_.find(owner);
  if (it == exposures_.end()) return;
  Exposure& exposure = it->second;
  if (exposure.forks > 0 || !exposure.open.empty()) return;
  if (exposure.highest > 0 && exposure.highest >= exposure.announced &&
      !WEFT_BREAK(no_last_watermark)) {
    step.send(owner, Settled{ids_.next()});
  }
  exposures_.erase(it);
}

void UserTable::confirm(Forks::iterator it, Step& step) {
  Fork& fork = it->second;
  const Handle handle{fork.rref, it->first};
  const bool withdrawn_here = fork.state == State::kCancelling;
  const bool announced = fork.creation || handle.fork.creator == fork.owner;
  fork.state = State::kConfirmed;
  --undecided_;
  if (!withdrawn_here) step.confirm(handle, std::exchange(fork.waiter, std::nullopt));
  const WorkerId owner = fork.owner;
  if (fork.creation) {
    if (auto exposure = exposures_.find(owner); exposure != exposures_.end()) {
      exposure->second.open.erase(handle.rref.number);
    }
  }
  if (!announced) tell_parent(handle.rref, handle.fork, owner, step);
  delete_if_done(it, step);
}

void UserTable::lose(Forks::iterator it, const absl::Status& status, Step& step) {
  tell_lost(it, status, step);
  erase(it, step);
}

void UserTable::tell_lost(Forks::iterator it, const absl::Status& status, Step& step) {
  Fork& fork = it->second;
  if (fork.state == State::kPending || fork.state == State::kCancelling) --undecided_;
  if (!fork.dropped) {
    step.lose(Handle{fork.rref, it->first}, status, fork.waiter);
  } else if (fork.state == State::kPending) {
    step.decide(fork.waiter, status);
  }
}

// The owner will never list this fork. It stays until its children are decided (B3). Its number is
// undecided until then. So the owner still knows why it refused, and tells the children's holders.
void UserTable::refuse(Forks::iterator it, const absl::Status& status, Step& step) {
  tell_lost(it, status, step);
  it->second.state = State::kRefused;
  it->second.dropped = true;
  delete_if_done(it, step);
}

void UserTable::end_refused(Forks::iterator it, Step& step) {
  const ForkId id = it->first;
  const Fork fork = std::move(it->second);
  erase(it, step);
  if (fork.creation) {
    decide(fork.owner, fork.rref.number, step);
  } else if (!WEFT_BREAK(refused_child_not_told)) {
    tell_parent(fork.rref, id, fork.owner, step);
  }
}

// Sends the fork's only USER_DELETE once no handle is left, the owner knows the fork (B2) and no
// child of it is undecided (B3).
void UserTable::delete_if_done(Forks::iterator it, Step& step) {
  Fork& fork = it->second;
  const bool has_children = fork.children > 0 && !WEFT_BREAK(deleted_before_children);
  const bool confirmed = fork.state == State::kConfirmed || WEFT_BREAK(deleted_unconfirmed);
  if (!fork.dropped || has_children) return;
  if (fork.state == State::kRefused) return end_refused(it, step);
  if (!confirmed) return;
  const WorkerId owner = fork.owner;
  step.send(owner, UserDelete{fork.rref, it->first, draining_, settled_below(owner)});
  if (draining_) {
    fork.state = State::kDeleting;
  } else {
    erase(it, step);
  }
}

void UserTable::erase(Forks::iterator it, Step& step) {
  const WorkerId owner = it->second.owner;
  forks_.erase(it);
  if (auto exposure = exposures_.find(owner); exposure != exposures_.end()) {
    --exposure->second.forks;
    announce_last(owner, step);
  }
}

void UserTable::release_child(Children::iterator it, Step& step) {
  const ForkId child = it->first;
  const ForkId parent = it->second.parent;
  const WorkerId owner = it->second.owner;
  children_.erase(it);
  // Not decide(), which might send SETTLED: if the parent is deleted now, its USER_DELETE carries
  // the watermark.
  if (auto exposure = exposures_.find(owner); exposure != exposures_.end()) {
    exposure->second.open.erase(child.number);
  }
  if (auto fork = forks_.find(parent); fork != forks_.end()) {
    --fork->second.children;
    delete_if_done(fork, step);
  }
  announce_last(owner, step);
}

void UserTable::tell_parent(RRefId rref, ForkId fork, WorkerId owner, Step& step) {
  if (fork.creator != self_) {
    if (!WEFT_BREAK(child_accept_not_sent)) step.send(fork.creator, ChildAccept{rref, fork});
  } else if (auto child = children_.find(fork); child != children_.end()) {
    release_child(child, step);  // this worker sent the fork to itself
  } else {
    announce_last(owner, step);
  }
}

}  // namespace weft::rref_internal
