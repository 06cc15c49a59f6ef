#include "weft/rref/internal/ownership_core.h"

#include <algorithm>
#include <tuple>
#include <utility>

#include "absl/strings/str_cat.h"
#include "weft/base/faults/breakage.h"

namespace weft::rref_internal {

OwnershipCore::OwnershipCore(WorkerId self, KeySource keys, OwnershipLimits limits)
    : self_(self), ids_(self, std::move(keys)), owned_(self, limits), used_(self, limits, ids_) {}

absl::StatusOr<Handle> OwnershipCore::own(TypeTag type) {
  if (absl::Status open = check_open(); !open.ok()) return open;
  const RRefId rref = ids_.rref();
  owned_.own(rref, std::move(type), ids_.key(rref));
  return Handle{rref, ForkId()};
}

absl::StatusOr<Handle> OwnershipCore::create(WorkerId owner, TypeTag type) {
  if (absl::Status open = check_open(); !open.ok()) return open;
  if (owner == self_) {
    return absl::InvalidArgumentError("create() is for other workers' values; use own()");
  }
  if (incarnations_.dead(owner)) {
    return absl::UnavailableError(absl::StrCat(owner.to_string(), " is dead"));
  }
  return used_.create(owner, std::move(type));
}

bool OwnershipCore::creation_failed(ForkId fork, absl::Status status, Actions& out) {
  Step event = step(out);
  return used_.creation_failed(fork, status, event);
}

Acceptance OwnershipCore::accept_creation(WorkerId from, const Creation& creation, Actions& out) {
  if (incarnations_.dead(from) || from == self_) {
    ++stale_messages_;
    return Acceptance::kRefused;
  }
  Step event = step(out);
  return owned_.accept_creation(from, creation, event);
}

bool OwnershipCore::set_value(RRefId rref, absl::Status result, Actions& out) {
  Step event = step(out);
  return owned_.set_value(rref, std::move(result), event);
}

absl::StatusOr<Reference> OwnershipCore::fork(const Handle& handle, WorkerId to) {
  if (absl::Status open = check_open(); !open.ok()) return open;
  if (incarnations_.dead(to))
    return absl::UnavailableError(absl::StrCat(to.to_string(), " is dead"));
  if (handle.owned()) return owned_.lend(handle.rref, ids_.fork(), to);
  return used_.make_child(handle, to);
}

void OwnershipCore::carrier_failed(const Reference& reference, Delivery delivery, Actions& out) {
  Step event = step(out);
  if (reference.owner == self_) {
    owned_.carrier_failed(reference, delivery, event);
  } else {
    used_.carrier_failed(reference, delivery, event);
  }
}

std::vector<Received> OwnershipCore::receive(WorkerId from, absl::Span<const Reference> references,
                                             WaiterId waiter, Actions& out) {
  std::vector<Received> results;
  results.reserve(references.size());
  if (references.empty()) {
    out.push_back(AllConfirmed{waiter, absl::OkStatus()});
    return results;
  }
  Step event = step(out);
  waiters_.expect(waiter, references.size());
  for (const Reference& reference : references) {
    const Handle handle{reference.rref, reference.owner == self_ ? ForkId() : reference.fork};
    if (absl::Status status = check(from, reference); !status.ok()) {
      event.decide(waiter, status);
      results.push_back({handle, std::move(status)});
      continue;
    }
    results.push_back(reference.owner == self_ ? owned_.receive(reference, waiter, event)
                                               : used_.receive(reference, waiter, event));
    if (draining_ && results.back().status.ok()) {
      drop(handle, out);
      results.back().status = check_open();
    }
  }
  return results;
}

void OwnershipCore::discard(WorkerId from, absl::Span<const Reference> references, Actions& out) {
  Step event = step(out);
  for (const Reference& reference : references) {
    if (!check(from, reference).ok()) continue;
    if (reference.owner == self_) {
      owned_.discard(reference, event);
    } else {
      used_.discard(reference, event);
    }
  }
}

void OwnershipCore::drop(const Handle& handle, Actions& out) {
  Step event = step(out);
  if (handle.owned()) {
    owned_.drop(handle.rref, event);
  } else {
    used_.drop(handle.fork, event);
  }
}

void OwnershipCore::fetch(WorkerId from, RRefId rref, RRefKey key, FetchTicket ticket,
                          Actions& out) {
  Step event = step(out);
  if (incarnations_.dead(from)) {
    ++stale_messages_;
    event.add(FetchFailed{ticket, rref,
                          absl::UnavailableError(absl::StrCat(from.to_string(), " is dead"))});
    return;
  }
  owned_.fetch(from, rref, key, ticket, event);
}

void OwnershipCore::cancel_fetch(RRefId rref, FetchTicket ticket, Actions& out) {
  Step event = step(out);
  owned_.cancel_fetch(rref, ticket, event);
}

void OwnershipCore::on_message(WorkerId from, WorkerId to, const Message& message, Actions& out) {
  // S7: messages from a dead incarnation, or to another incarnation of this worker, are dropped.
  const bool ended = incarnations_.dead(from) && !WEFT_BREAK(ended_incarnation_heard);
  if (to != self_ || from == self_ || !from.valid() || ended) {
    ++stale_messages_;
    return;
  }
  Step event = step(out);
  if (!handle_message(from, message, event)) ++refused_messages_;
}

void OwnershipCore::peer_dead(WorkerId worker, Actions& out) {
  if (worker == self_ || !incarnations_.add(worker)) return;
  Step event = step(out);
  owned_.peer_dead(worker, event);
  used_.peer_dead(worker, event);
}

void OwnershipCore::begin_shutdown(Actions& out) {
  if (draining_) return;
  draining_ = true;
  Step event = step(out);
  used_.drop_all_handles(event);
  owned_.drop_all_handles(event);
}

std::vector<Leak> OwnershipCore::leaks() const {
  std::vector<Leak> leaks;
  owned_.report(leaks);
  used_.report(leaks);
  std::stable_sort(leaks.begin(), leaks.end(), [](const Leak& a, const Leak& b) {
    return std::tie(a.rref, a.kind, a.worker) < std::tie(b.rref, b.kind, b.worker);
  });
  return leaks;
}

void OwnershipCore::close(Actions& out) {
  draining_ = true;
  Step event = step(out);
  used_.close(event);
  owned_.close(event);
  waiters_.fail_all(absl::CancelledError(absl::StrCat(self_.to_string(), " has shut down")), out);
}

bool OwnershipCore::confirmed(const Handle& handle) const {
  return handle.owned() ? owned_.created(handle.rref) : used_.confirmed(handle.fork);
}

OwnershipGauges OwnershipCore::gauges() const {
  OwnershipGauges gauges;
  owned_.fill(gauges);
  used_.fill(gauges);
  gauges.stale_messages = stale_messages_;
  gauges.refused_messages = refused_messages_;
  return gauges;
}

// B1: forks form a tree whose edges are carriers. So a carrier's sender must be the fork's creator.
absl::Status OwnershipCore::check(WorkerId from, const Reference& reference) const {
  if (!reference.rref.valid() || !reference.fork.valid() || !reference.owner.valid()) {
    return absl::InvalidArgumentError("a reference without owner, rref or fork id");
  }
  if (reference.fork.creator != from || (reference.owner == from) == reference.parent.valid()) {
    return absl::InvalidArgumentError(
        absl::StrCat(reference.fork.to_string(), " of ", reference.rref.to_string(),
                     " was not issued by its sender ", from.to_string()));
  }
  if (reference.owner.index == self_.index && reference.owner != self_) {
    return rref_lost_error(reference.rref, reference.owner, "its owner has restarted");
  }
  if (incarnations_.dead(from)) {
    return rref_lost_error(reference.rref, from, "its sender is dead");
  }
  return absl::OkStatus();
}

absl::Status OwnershipCore::check_open() const {
  if (!draining_) return absl::OkStatus();
  return absl::FailedPreconditionError(absl::StrCat(self_.to_string(), " is shutting down"));
}

bool OwnershipCore::handle_message(WorkerId from, const Message& message, Step& step) {
  struct Visitor {
    OwnershipCore& core;
    WorkerId from;
    Step& step;

    bool operator()(const ForkRequest& m) {
      core.owned_.on_settled_below(from, m.settled_below, step);
      return core.owned_.on_fork_request(from, m, step);
    }
    bool operator()(const UserDelete& m) {
      core.owned_.on_settled_below(from, m.settled_below, step);
      return core.owned_.on_user_delete(from, m, step);
    }
    bool operator()(const CancelFork& m) {
      if (m.owner != core.self_) return core.used_.on_recall(from, m, step);
      core.owned_.on_settled_below(from, m.settled_below, step);
      return core.owned_.on_cancel_fork(from, m, step);
    }
    bool operator()(const CancelAck& m) {
      return m.owner == core.self_ ? core.owned_.on_cancel_ack(from, m, step)
                                   : core.used_.on_cancel_ack(from, m, step);
    }
    bool operator()(const Settled& m) {
      core.owned_.on_settled_below(from, m.settled_below, step);
      return true;
    }
    bool operator()(const ForkAccept& m) { return core.used_.on_fork_accept(from, m, step); }
    bool operator()(const ForkReject& m) { return core.used_.on_fork_reject(from, m, step); }
    bool operator()(const ChildAccept& m) { return core.used_.on_child_accept(from, m, step); }
    bool operator()(const DeleteAck& m) { return core.used_.on_delete_ack(from, m, step); }
  };
  return std::visit(Visitor{*this, from, step}, message);
}

}  // namespace weft::rref_internal
