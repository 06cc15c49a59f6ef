#include "weft/rref/internal/owner_table.h"

#include <algorithm>
#include <iterator>
#include <utility>

#include "absl/strings/str_cat.h"
#include "weft/base/faults/breakage.h"

namespace weft::rref_internal {
namespace {

absl::Status wrong_type(RRefId rref, const TypeTag& type, WorkerId from, const TypeTag& sent) {
  return absl::InvalidArgumentError(absl::StrCat(rref.to_string(), " is a ", type.name, ", ",
                                                 from.to_string(), " sent it as a ", sent.name));
}

}  // namespace

void OwnerTable::own(RRefId rref, TypeTag type, RRefKey key) {
  Entry& entry = entries_[rref];
  entry.created = true;
  entry.type = std::move(type);
  entry.key = key;
  entry.handles = 1;
}

// Case 1. The entry and the creator's fork are registered in one event, before the function runs.
Acceptance OwnerTable::accept_creation(WorkerId from, const Creation& creation, Step& step) {
  const auto& [rref, fork, type, key] = creation;
  if (rref.creator != from || fork.creator != from) return Acceptance::kRefused;
  auto it = entries_.find(rref);
  if (it != entries_.end() && it->second.created) {
    if (it->second.forks.contains(fork)) step.send(from, ForkAccept{rref, fork});
    return Acceptance::kDuplicate;
  }
  if (ended(rref, step) && !WEFT_BREAK(withdrawn_creation_runs)) {
    return Acceptance::kRefused;  // BX2: the cancel overtook the creation
  }
  if (auto held = holders_.find(from);
      held != holders_.end() && held->second >= limits_.forks_per_worker) {
    return Acceptance::kOverQuota;
  }
  if (it == entries_.end()) it = entries_.emplace(rref, Entry()).first;
  placeholders_.erase(rref);
  Entry& entry = it->second;
  entry.created = true;
  entry.type = type;
  entry.key = key;
  list(entry, fork, from);
  step.send(from, ForkAccept{rref, fork});
  decide_parked(it, step);
  return Acceptance::kRun;
}

// B6: what came before the creation is decided now.
void OwnerTable::decide_parked(Entries::iterator it, Step& step) {
  const RRefId rref = it->first;
  Entry& entry = it->second;
  for (const auto& [key, parked] : entry.parked) {
    const ForkId fork = key.first;
    unpark(parked.from);
    --parked_forks_;
    if (WEFT_BREAK(parked_forks_forgotten)) continue;
    const bool opened = opens(entry, parked.from, parked.key);
    if (parked.is_reference) {
      const absl::Status wrong = !opened ? wrong_key_error(rref, parked.from)
                                 : parked.type == entry.type
                                     ? absl::OkStatus()
                                     : wrong_type(rref, entry.type, parked.from, parked.type);
      if (!wrong.ok()) step.decide(parked.waiter, wrong);
      step.confirm(Handle{rref, {}}, wrong.ok() ? parked.waiter : std::nullopt);  // all are one
      step.send(parked.from, ChildAccept{rref, fork});
    } else if (!opened) {
      step.send(parked.from, ForkReject{rref, fork, RejectReason::kWrongKey});
    } else if (entry.forks.contains(fork)) {
      step.send(parked.from, ForkReject{rref, fork, RejectReason::kNotTheHolder});
    } else {
      list(entry, fork, parked.from);
      step.send(parked.from, ForkAccept{rref, fork});
    }
  }
  entry.parked.clear();
  std::erase_if(entry.fetches, [&](const auto& fetch) {
    const ParkedFetch& parked = fetch.second;
    if (opens(entry, parked.from, parked.key)) return false;
    step.add(FetchFailed{fetch.first, rref, wrong_key_error(rref, parked.from)});
    unpark(parked.from);
    --parked_fetches_;
    return true;
  });
}

bool OwnerTable::set_value(RRefId rref, absl::Status result, Step& step) {
  auto it = entries_.find(rref);
  if (it == entries_.end() || !it->second.created || it->second.value != Value::kNone) return false;
  Entry& entry = it->second;
  entry.value = result.ok() ? Value::kReady : Value::kFailed;
  entry.error = std::move(result);
  for (const auto& [ticket, parked] : entry.fetches) {
    unpark(parked.from);
    --parked_fetches_;
    if (entry.error.ok()) {
      step.add(FetchReady{ticket, rref});
    } else {
      step.add(FetchFailed{ticket, rref, entry.error});
    }
  }
  entry.fetches.clear();
  settle(it, step);
  return true;
}

absl::StatusOr<Reference> OwnerTable::lend(RRefId rref, ForkId fork, WorkerId to) {
  auto it = entries_.find(rref);
  if (it == entries_.end() || !it->second.created) {
    return lost(rref, RejectReason::kFreed);
  }
  if (!WEFT_BREAK(passed_fork_not_listed)) list(it->second, fork, to);
  return Reference{self_, rref, fork, ForkId(), it->second.type, it->second.key};
}

// BN5. The holder gets the fork as confirmed and sends no request. So only the holder knows whether
// it read the carrier. The owner asks it, and lists the fork until the answer comes.
void OwnerTable::carrier_failed(const Reference& reference, Delivery delivery, Step& step) {
  auto it = entries_.find(reference.rref);
  if (it == entries_.end()) return;
  auto fork = it->second.forks.find(reference.fork);
  if (fork == it->second.forks.end()) return;
  const WorkerId holder = fork->second.holder;
  if (delivery == Delivery::kNeverSent || holder == self_) {
    unlist(it, reference.fork, step);
  } else if (!fork->second.recalled) {
    fork->second.recalled = true;
    step.send(holder, CancelFork{self_, reference.rref, reference.fork});
  }
}

// Cases 2 and 6: a reference comes back to the owner of its value.
Received OwnerTable::receive(const Reference& reference, std::optional<WaiterId> waiter,
                             Step& step) {
  const RRefId rref = reference.rref;
  const WorkerId from = reference.fork.creator;
  const Handle handle{rref, {}};
  const auto refuse = [&](absl::Status status) {
    if (from != self_) step.send(from, ChildAccept{rref, reference.fork});
    step.decide(waiter, status);
    return Received{handle, std::move(status)};
  };
  auto it = entries_.find(rref);
  const bool created = it != entries_.end() && it->second.created;
  if (from == self_) {  // case 6: the fork ends where it arrives
    if (!created || !it->second.forks.contains(reference.fork)) {
      return refuse(lost(rref, RejectReason::kFreed));
    }
    ++it->second.handles;
    unlist(it, reference.fork, step);
    step.confirm(handle, waiter);
    return {handle, absl::OkStatus()};
  }
  if (ended(reference.fork, step) || (!created && ended(rref, step))) {
    return refuse(lost(rref, refusal(rref, reference.fork, step)));
  }
  if (created) {
    if (!opens(it->second, from, reference.key)) return refuse(wrong_key_error(rref, from));
    if (it->second.type != reference.type) {
      return refuse(wrong_type(rref, it->second.type, from, reference.type));
    }
    ++it->second.handles;
    step.send(from, ChildAccept{rref, reference.fork});
    step.confirm(handle, waiter);
    return {handle, absl::OkStatus()};
  }
  // The reference came before the creation. Its handle counts at once, and keeps the placeholder.
  if (!park(from)) return refuse(lost(rref, RejectReason::kOverloaded));
  it = placeholder(rref);
  const ParkedFork parked{from, true, waiter, reference.type, reference.key};
  if (!it->second.parked.emplace(std::pair(reference.fork, from), parked).second) {
    unpark(from);
    return refuse(
        absl::AlreadyExistsError(absl::StrCat(reference.fork.to_string(), " was received before")));
  }
  ++parked_forks_;
  ++it->second.handles;
  return {handle, absl::OkStatus()};
}

void OwnerTable::discard(const Reference& reference, Step& step) {
  if (reference.fork.creator != self_) {
    step.send(reference.fork.creator, ChildAccept{reference.rref, reference.fork});
    return;
  }
  auto it = entries_.find(reference.rref);
  if (it != entries_.end()) unlist(it, reference.fork, step);
}

void OwnerTable::drop(RRefId rref, Step& step) {
  auto it = entries_.find(rref);
  if (it == entries_.end() || it->second.handles == 0) return;
  --it->second.handles;
  settle(it, step);
}

void OwnerTable::drop_all_handles(Step& step) {
  for (const RRefId& rref : listed()) {
    auto it = entries_.find(rref);
    if (it == entries_.end()) continue;
    it->second.handles = 0;
    settle(it, step);
  }
}

void OwnerTable::fetch(WorkerId from, RRefId rref, RRefKey key, FetchTicket ticket, Step& step) {
  auto it = entries_.find(rref);
  if (it != entries_.end() && it->second.created && !opens(it->second, from, key)) {
    step.add(FetchFailed{ticket, rref, wrong_key_error(rref, from)});
    return;
  }
  if (it != entries_.end() && it->second.value == Value::kReady) {
    step.add(FetchReady{ticket, rref});
    return;
  }
  if (it != entries_.end() && it->second.value == Value::kFailed) {
    step.add(FetchFailed{ticket, rref, it->second.error});
    return;
  }
  if (it == entries_.end() && ended(rref, step)) {
    step.add(FetchFailed{ticket, rref, lost(rref, refusal(rref, ForkId(), step))});
    return;
  }
  if (!park(from)) {
    step.add(FetchFailed{ticket, rref,
                         absl::ResourceExhaustedError(absl::StrCat(
                             from.to_string(), " has ", limits_.parked_per_worker,
                             " fetches and references waiting at ", self_.to_string()))});
    return;
  }
  if (it == entries_.end()) it = placeholder(rref);
  if (it->second.fetches.emplace(ticket, ParkedFetch{from, key}).second) {
    ++parked_fetches_;
  } else {
    unpark(from);
  }
}

void OwnerTable::cancel_fetch(RRefId rref, FetchTicket ticket, Step& step) {
  auto it = entries_.find(rref);
  if (it == entries_.end()) return;
  auto fetch = it->second.fetches.find(ticket);
  if (fetch == it->second.fetches.end()) return;
  unpark(fetch->second.from);
  --parked_fetches_;
  it->second.fetches.erase(fetch);
  settle(it, step);
}

// Case 4 at the owner. BN4: a fork or an RRef that has ended is refused.
bool OwnerTable::on_fork_request(WorkerId from, const ForkRequest& message, Step& step) {
  const auto refuse = [&](RejectReason reason) {
    const absl::Status* error =
        reason == RejectReason::kNotCreated ? creation_errors_.find(message.rref) : nullptr;
    step.send(from, ForkReject{message.rref, message.fork, reason,
                               error != nullptr ? *error : absl::OkStatus()});
  };
  auto it = entries_.find(message.rref);
  if (it != entries_.end()) {
    auto fork = it->second.forks.find(message.fork);
    if (fork != it->second.forks.end()) {
      if (fork->second.holder != from) {
        refuse(RejectReason::kNotTheHolder);
        return false;
      }
      step.send(from, ForkAccept{message.rref, message.fork});  // B7: a repeat
      return true;
    }
    if (it->second.parked.contains({message.fork, from}))
      return true;  // B7: a repeat that waits already
  }
  const bool created = it != entries_.end() && it->second.created;
  if (ended(message.fork, step) || (!created && ended(message.rref, step))) {
    refuse(refusal(message.rref, message.fork, step));
    return true;
  }
  if (created) {
    if (!opens(it->second, from, message.key)) {
      refuse(RejectReason::kWrongKey);
      return false;
    }
    list(it->second, message.fork, from);
    step.send(from, ForkAccept{message.rref, message.fork});
    return true;
  }
  if (!park(from)) {
    refuse(RejectReason::kOverloaded);
    return true;
  }
  placeholder(message.rref)->second.parked[{message.fork, from}] =
      ParkedFork{from, false, {}, {}, message.key};
  ++parked_forks_;
  return true;
}

bool OwnerTable::on_user_delete(WorkerId from, const UserDelete& message, Step& step) {
  auto it = entries_.find(message.rref);
  const bool listed = it != entries_.end() && it->second.forks.contains(message.fork);
  if (listed && it->second.forks[message.fork].holder != from) return false;
  if (listed) {
    if (it->second.forks[message.fork].recalled) read_while_recalled_[message.fork] = from;
    add_tombstone(message.fork.creator, message.fork.number, step);
    if (!WEFT_BREAK(delete_not_struck_out)) unlist(it, message.fork, step);
  } else if (WEFT_BREAK(repeat_strikes_another) && it != entries_.end() &&
             !it->second.forks.empty()) {
    unlist(it, it->second.forks.begin()->first, step);
  }
  // An unlisted fork that this owner made is a repeat, or the holder had read and dropped it before
  // it answered our CANCEL_FORK with "absent". DELETE_ACK removes the holder's tombstone.
  if (message.ack_wanted || (!listed && message.fork.creator == self_)) {
    step.send(from, DeleteAck{message.rref, message.fork});
  }
  return true;
}

// Withdraws a carrier (BN5) or a creation (BX2, BN6). A registered fork stays: its holder has read
// the carrier, so only the holder may end it.
bool OwnerTable::on_cancel_fork(WorkerId from, const CancelFork& message, Step& step) {
  if (message.fork.creator != from || (message.creation && message.rref.creator != from)) {
    return false;
  }
  auto it = entries_.find(message.rref);
  const bool created = it != entries_.end() && it->second.created;
  // No worker asks for the fork of a creation.
  const bool registered =
      it != entries_.end() && (it->second.forks.contains(message.fork) ||
                               (!message.creation && it->second.has_parked(message.fork)));
  if (!registered) {
    if (!message.creation) {
      if (created || !ended(message.rref, step)) {
        add_tombstone(message.fork.creator, message.fork.number, step);
      }
    } else if (!created) {
      if (!message.error.ok() && !ended(message.rref, step)) {
        creation_errors_.add(message.rref, message.error);
      }
      if (it != entries_.end() && !WEFT_BREAK(cancelled_creation_keeps_waiting)) {
        refuse_placeholder(it,
                           creation_errors_.find(message.rref) != nullptr
                               ? RejectReason::kNotCreated
                               : RejectReason::kWithdrawn,
                           step);
      }
      add_tombstone(message.rref.creator, message.rref.number, step);
    }
  }
  step.send(from, CancelAck{self_, message.rref, message.fork, registered});
  return true;
}

bool OwnerTable::on_cancel_ack(WorkerId from, const CancelAck& message, Step& step) {
  auto read = read_while_recalled_.find(message.fork);
  if (read != read_while_recalled_.end()) {
    if (read->second != from) return false;
    read_while_recalled_.erase(read);
    if (!message.registered) step.send(from, DeleteAck{message.rref, message.fork});
    return true;
  }
  auto it = entries_.find(message.rref);
  if (it == entries_.end()) return true;
  auto fork = it->second.forks.find(message.fork);
  if (fork == it->second.forks.end()) return true;
  if (fork->second.holder != from) return false;
  if (!fork->second.recalled) return true;  // B7: a repeat
  fork->second.recalled = false;
  if (!message.registered) unlist(it, message.fork, step);
  return true;
}

void OwnerTable::on_settled_below(WorkerId from, uint64_t settled_below, Step& step) {
  if (WEFT_BREAK(watermark_not_taken)) return;
  if (ledger_.raise(from, settled_below)) refuse_placeholders(from, settled_below, step);
}

// BN2: the forks of a dead worker end. BN1: requests that wait for a creation by it are refused.
void OwnerTable::peer_dead(WorkerId worker, Step& step) {
  const absl::Status gone = absl::UnavailableError(absl::StrCat(worker.to_string(), " is dead"));
  refuse_placeholders(worker, UINT64_MAX, step);
  holders_.erase(worker);  // the loop erases the forks without unlist(), which would count
  for (const RRefId& rref : listed()) {
    auto it = entries_.find(rref);
    if (it == entries_.end()) continue;
    Entry& entry = it->second;
    for (auto fork = entry.forks.begin(); fork != entry.forks.end();) {
      if (fork->second.holder == worker && !WEFT_BREAK(dead_user_not_reaped)) {
        add_tombstone(fork->first.creator, fork->first.number, step);
        fork = entry.forks.erase(fork);
      } else {
        ++fork;
      }
    }
    // A reference that the dead worker sent has a handle here, so it still waits for its creation.
    for (auto parked = entry.parked.begin(); parked != entry.parked.end();) {
      if (parked->second.from == worker && !parked->second.is_reference) {
        unpark(worker);
        --parked_forks_;
        parked = entry.parked.erase(parked);
      } else {
        ++parked;
      }
    }
    for (auto fetch = entry.fetches.begin(); fetch != entry.fetches.end();) {
      if (fetch->second.from == worker) {
        step.add(FetchFailed{fetch->first, rref, gone});
        unpark(worker);
        --parked_fetches_;
        fetch = entry.fetches.erase(fetch);
      } else {
        ++fetch;
      }
    }
    settle(it, step);
  }
  for (auto it = read_while_recalled_.begin(); it != read_while_recalled_.end();) {
    it = it->second == worker ? read_while_recalled_.erase(it) : std::next(it);
  }
  ledger_.forget(worker);
}

void OwnerTable::close(Step& step) {
  while (!entries_.empty()) {
    auto it = entries_.begin();
    Entry& entry = it->second;
    fail_fetches(entry, it->first,
                 absl::CancelledError(absl::StrCat(self_.to_string(), " has shut down")), step);
    if (entry.created) step.add(Free{it->first});
    entries_.erase(it);
  }
  placeholders_.clear();
  parked_.clear();
  read_while_recalled_.clear();
  holders_.clear();
  creation_errors_.clear();
  parked_forks_ = parked_fetches_ = 0;
}

bool OwnerTable::created(RRefId rref) const {
  auto it = entries_.find(rref);
  return it != entries_.end() && it->second.created;
}

void OwnerTable::fill(OwnershipGauges& gauges) const {
  gauges.owners = entries_.size() - placeholders_.size();
  gauges.forks = 0;
  for (const auto& [holder, forks] : holders_) gauges.forks += forks;
  gauges.tombstones += ledger_.tombstones() + read_while_recalled_.size();
  gauges.parked_fetches = parked_fetches_;
  gauges.parked_forks = parked_forks_;
}

void OwnerTable::report(std::vector<Leak>& leaks) const {
  for (const auto& [rref, entry] : entries_) {
    std::map<WorkerId, uint64_t> holders;
    for (const auto& [id, fork] : entry.forks) ++holders[fork.holder];
    for (const auto& [holder, count] : holders) {
      leaks.push_back({Leak::Kind::kHeldByUser, rref, entry.type, holder, count});
    }
    std::map<WorkerId, uint64_t> waiting;
    for (const auto& [id, parked] : entry.parked) ++waiting[parked.from];
    for (const auto& [worker, count] : waiting) {
      leaks.push_back({Leak::Kind::kAwaitsCreation, rref, entry.type, worker, count});
    }
    if (entry.created && entry.handles > 0) {
      leaks.push_back({Leak::Kind::kHeldHere, rref, entry.type, self_, entry.handles});
    }
  }
}

RejectReason OwnerTable::refusal(RRefId rref, ForkId fork, const Step& step) const {
  auto it = entries_.find(rref);
  const bool created = it != entries_.end() && it->second.created;
  if (!created && step.dead(rref.creator)) return RejectReason::kCreatorDied;
  if (created && step.dead(fork.creator)) return RejectReason::kCreatorDied;
  if (!created && creation_errors_.find(rref) != nullptr) return RejectReason::kNotCreated;
  return created ? RejectReason::kWithdrawn : RejectReason::kFreed;
}

// Loops over the entries use these ids, not iterators: an event on one entry may erase others,
// because a tombstone past the limit raises the watermark.
std::vector<RRefId> OwnerTable::listed() const {
  std::vector<RRefId> rrefs;
  rrefs.reserve(entries_.size());
  for (const auto& [rref, entry] : entries_) rrefs.push_back(rref);
  return rrefs;
}

OwnerTable::Entries::iterator OwnerTable::placeholder(RRefId rref) {
  auto [it, inserted] = entries_.emplace(rref, Entry());
  if (inserted) placeholders_.insert(rref);
  return it;
}

bool OwnerTable::park(WorkerId from) {
  uint32_t& count = parked_[from];
  // This worker itself has no bound: its own calls limit what waits.
  if (count >= limits_.parked_per_worker && from != self_) return false;
  ++count;
  return true;
}

void OwnerTable::unpark(WorkerId from) {
  auto it = parked_.find(from);
  if (--it->second == 0) parked_.erase(it);
}

void OwnerTable::add_tombstone(WorkerId creator, uint64_t number, Step& step) {
  if (WEFT_BREAK(no_tombstones)) return;
  if (creator == self_ || step.dead(creator)) return;  // ended() needs no tombstone for these
  if (ledger_.add_tombstone(creator, number)) {
    refuse_placeholders(creator, ledger_.watermark(creator), step);
  }
}

void OwnerTable::refuse_placeholders(WorkerId creator, uint64_t below, Step& step) {
  auto next = placeholders_.lower_bound(RRefId{creator, 0});
  while (next != placeholders_.end() && next->creator == creator && next->number < below) {
    auto it = entries_.find(*next++);
    refuse_placeholder(
        it, step.dead(creator) ? RejectReason::kCreatorDied : RejectReason::kWithdrawn, step);
  }
  creation_errors_.forget_below(creator, below);
}

void OwnerTable::refuse_placeholder(Entries::iterator it, RejectReason reason, Step& step) {
  const RRefId rref = it->first;
  const absl::Status status = lost(rref, reason);
  for (const auto& [key, parked] : it->second.parked) {
    const ForkId fork = key.first;
    unpark(parked.from);
    --parked_forks_;
    if (parked.is_reference) {
      step.lose(Handle{rref, {}}, status, parked.waiter);
      step.send(parked.from, ChildAccept{rref, fork});
    } else {
      step.send(parked.from,
                ForkReject{rref, fork, reason,
                           reason == RejectReason::kNotCreated ? status : absl::OkStatus()});
    }
  }
  fail_fetches(it->second, rref, status, step);
  placeholders_.erase(rref);
  entries_.erase(it);
}

void OwnerTable::unlist(Entries::iterator it, ForkId fork, Step& step) {
  auto found = it->second.forks.find(fork);
  if (found == it->second.forks.end()) return;
  const WorkerId holder = found->second.holder;
  it->second.forks.erase(found);
  if (--holders_[holder] == 0) holders_.erase(holder);
  settle(it, step);
}

void OwnerTable::list(Entry& entry, ForkId fork, WorkerId holder) {
  entry.forks[fork] = Fork{holder};
  ++holders_[holder];
}

// Frees the value, or erases the placeholder, if no fork and no handle is left and no call waits
// for it (B4). A freed value never comes back (S3).
void OwnerTable::settle(Entries::iterator it, Step& step) {
  Entry& entry = it->second;
  const RRefId rref = it->first;
  const bool shared = !entry.forks.empty() && !WEFT_BREAK(freed_with_forks);
  const bool awaited = !entry.fetches.empty() && !WEFT_BREAK(freed_while_awaited);
  if (entry.handles > 0 || shared || awaited) return;
  if (!entry.created) {
    if (!entry.parked.empty()) return;
    placeholders_.erase(rref);
    entries_.erase(it);
    return;
  }
  entries_.erase(it);
  add_tombstone(rref.creator, rref.number, step);
  step.add(Free{rref});
}

void OwnerTable::fail_fetches(Entry& entry, RRefId rref, const absl::Status& status, Step& step) {
  for (const auto& [ticket, parked] : entry.fetches) {
    unpark(parked.from);
    --parked_fetches_;
    step.add(FetchFailed{ticket, rref, status});
  }
  entry.fetches.clear();
}

absl::Status OwnerTable::lost(RRefId rref, RejectReason reason) const {
  if (reason == RejectReason::kNotCreated) return *creation_errors_.find(rref);
  return rref_lost_error(rref, self_, to_string(reason));
}

}  // namespace weft::rref_internal
