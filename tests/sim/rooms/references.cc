#include "weft/tests/sim/rooms/references.h"

#include <algorithm>
#include <tuple>
#include <utility>
#include <variant>

#include "absl/strings/str_cat.h"
#include "weft/base/overloaded.h"
#include "weft/tests/sim/world/world.h"

namespace weft::sim {

using namespace weft::rpc_internal;   // NOLINT: the words of the ownership protocol
using namespace weft::rref_internal;  // NOLINT: as above

namespace {

constexpr size_t kMaxHeld = 10;

rref_internal::RRefKey key_for(RRefId rref) { return rref.creator.bits() ^ rref.number << 8; }

const rref_internal::TypeTag& value_type() {
  static const rref_internal::TypeTag type{7, "value"};
  return type;
}

}  // namespace

HandleNode::~HandleNode() {
  if (room.closing_) return;
  auto found = room.nodes_.find(handle);
  std::erase(found->second, this);
  if (found->second.empty()) room.nodes_.erase(found);
  room.released_.push_back(handle);
}

References::References(Worker& worker)
    : worker_(worker),
      world_(worker.world),
      core_(worker.id, key_for, worker.world.ownership_limits) {}

References::~References() { closing_ = true; }

HandlePtr References::add_handle(const rref_internal::Handle& handle, WorkerId owner) {
  auto node = std::make_shared<HandleNode>(*this, handle, owner);
  nodes_[handle].push_back(node.get());
  world_.checker.references.hold(worker_.slot, handle);
  return node;
}

// ---- the program's variables

void References::keep(HandlePtr handle) {
  if (world_.winding_down) return;
  if (held_.size() >= kMaxHeld) held_.erase(held_.begin() + world_.dice.below(held_.size()));
  held_.push_back(std::move(handle));
}

HandlePtr References::some_held() {
  std::erase_if(held_, [](const HandlePtr& handle) { return handle->lost; });
  return held_.empty() ? nullptr : world_.dice.pick(held_);
}

void References::drop_one() {
  if (!held_.empty()) held_.erase(held_.begin() + world_.dice.below(held_.size()));
}

// ---- creation

HandlePtr References::own() {
  absl::StatusOr<rref_internal::Handle> handle = core_.own(value_type());
  if (!handle.ok()) return nullptr;
  world_.checker.references.create(handle->rref, {}, worker_.id, worker_.id);
  world_.checker.references.created(handle->rref);
  HandlePtr node = add_handle(*handle, worker_.id);
  making_.insert(handle->rref);
  world_.schedule.in(world_.dice.micros(1, 500), EventKind::kValue, worker_.slot,
                     handle->rref.number);
  return node;
}

HandlePtr References::create(WorkerId owner, RRefId* rref, ForkId* fork) {
  absl::StatusOr<rref_internal::Handle> handle =
      owner == worker_.id ? core_.own(value_type()) : core_.create(owner, value_type());
  if (!handle.ok()) return nullptr;
  *rref = handle->rref;
  *fork = handle->fork;
  if (world_.trace.on()) {
    world_.trace.add(absl::StrCat("  creates ", rref->to_string(), " at ", owner.to_string()));
  }
  world_.checker.references.create(handle->rref, handle->fork, owner, worker_.id);
  if (owner == worker_.id) {
    own_creations_.insert(handle->rref);
    world_.checker.references.created(handle->rref);
  }
  return add_handle(*handle, owner);
}

void References::creation_failed(const HandlePtr& handle, WorkerId owner) {
  rref_internal::Actions actions;
  if (!handle->handle.owned()) {
    if (!worker_.sessions.is_live(owner)) core_.peer_dead(owner, actions);
    if (core_.creation_failed(handle->handle.fork, absl::DeadlineExceededError(""), actions)) {
      world_.report.count(Effect::kCreationsCancelled);
      world_.checker.references.excuse(handle->handle.rref);
    }
  } else if (own_creations_.erase(handle->handle.rref) > 0) {
    world_.checker.references.excuse(handle->handle.rref);
    core_.set_value(handle->handle.rref, absl::DeadlineExceededError(""), actions);
  }
  perform(actions);
}

rref_internal::Acceptance References::accept_creation(WorkerId from, const CallBody& body) {
  if (from == worker_.id) {
    return own_creations_.erase(body.rref) > 0 ? rref_internal::Acceptance::kRun
                                               : rref_internal::Acceptance::kRefused;
  }
  rref_internal::Actions actions;
  const rref_internal::Acceptance acceptance = core_.accept_creation(
      from, {body.rref, body.fork, value_type(), key_for(body.rref)}, actions);
  if (acceptance == rref_internal::Acceptance::kRun) world_.checker.references.created(body.rref);
  perform(actions);
  return acceptance;
}

// A value may hold references only to older values of the same creator. Otherwise cycles would
// never be freed.
void References::set_value(RRefId rref, bool ok, const std::vector<HandlePtr>& holds) {
  rref_internal::Actions actions;
  const bool wanted =
      core_.set_value(rref, ok ? absl::OkStatus() : absl::UnknownError("threw"), actions);
  if (wanted) {
    world_.checker.references.value_set(rref);
    std::vector<HandlePtr>& value = values_[rref];
    for (const HandlePtr& handle : holds) {
      if (handle->handle.rref.creator == rref.creator && handle->handle.rref < rref) {
        value.push_back(handle);
      }
    }
  }
  perform(actions);
}

// ---- references in messages

std::optional<rref_internal::Reference> References::carry(const HandlePtr& handle, WorkerId to) {
  if (handle->lost) return std::nullopt;
  absl::StatusOr<rref_internal::Reference> reference = core_.fork(handle->handle, to);
  if (!reference.ok()) return std::nullopt;
  world_.checker.references.fork(*reference, to);
  return *std::move(reference);
}

void References::carrier_ended(const rref_internal::Reference& reference) {
  rref_internal::Actions actions;
  world_.checker.references.decide(reference.fork);
  core_.carrier_failed(reference, rref_internal::Delivery::kNeverSent, actions);
  perform(actions);
}

std::vector<HandlePtr> References::adopt(WorkerId from,
                                         const std::vector<rref_internal::Reference>& references,
                                         rref_internal::WaiterId waiter,
                                         rref_internal::Actions& actions, bool* ok) {
  const std::vector<rref_internal::Received> results =
      core_.receive(from, references, waiter, actions);
  std::vector<HandlePtr> handles;
  for (size_t i = 0; i < results.size(); ++i) {
    world_.checker.references.read(references[i], worker_.id);
    if (results[i].status.ok()) {
      handles.push_back(add_handle(results[i].handle, references[i].owner));
    } else {
      *ok = false;
    }
  }
  return handles;
}

std::vector<HandlePtr> References::receive(WorkerId from,
                                           const std::vector<rref_internal::Reference>& references,
                                           bool* ok) {
  if (references.empty()) return {};
  rref_internal::Actions actions;
  std::vector<HandlePtr> handles = adopt(from, references, next_waiter_++, actions, ok);
  perform(actions);
  return handles;
}

void References::receive_confirmed(WorkerId from,
                                   const std::vector<rref_internal::Reference>& references,
                                   uint64_t incoming) {
  rref_internal::Actions actions;
  const rref_internal::WaiterId waiter = next_waiter_++;
  Arrival arrival{.incoming = incoming};
  arrival.handles = adopt(from, references, waiter, actions, &arrival.ok);
  arrivals_.emplace(waiter, std::move(arrival));
  perform(actions);
}

std::vector<HandlePtr> References::take_arrived(uint64_t incoming) {
  auto node = arrived_.extract(incoming);
  return node.empty() ? std::vector<HandlePtr>() : std::move(node.mapped());
}

void References::discard(WorkerId from, const std::vector<rref_internal::Reference>& references) {
  if (references.empty()) return;
  rref_internal::Actions actions;
  for (const rref_internal::Reference& reference : references)
    world_.checker.references.decide(reference.fork);
  core_.discard(from, references, actions);
  perform(actions);
}

// ---- values

uint64_t References::fetch(WorkerId from, const CallBody& body, uint64_t incoming) {
  rref_internal::Actions actions;
  const rref_internal::FetchTicket ticket = next_ticket_++;
  fetches_.emplace(ticket, Fetch{incoming, body.rref});
  core_.fetch(from, body.rref, body.key, ticket, actions);
  perform(actions);
  return fetches_.contains(ticket) ? ticket : 0;
}

void References::forget_target(uint64_t ticket) {
  auto node = fetches_.extract(ticket);
  if (node.empty()) return;
  rref_internal::Actions actions;
  core_.cancel_fetch(node.mapped().rref, ticket, actions);
  perform(actions);
  worker_.calls.on_target(node.mapped().incoming, false);
}

// ---- what the core asks for

void References::perform(rref_internal::Actions& actions) {
  OwnershipBook& book = world_.checker.references;
  for (rref_internal::Action& action : actions) {
    std::visit(
        Overloaded{
            [&](rref_internal::Send& send) {
              if (world_.trace.on()) world_.trace.add(absl::StrCat("  ", to_string(send.message)));
              book.on_send(worker_.id, send.message);
              worker_.sessions.post(
                  send.to, rpc_internal::Topic::kRRef,
                  std::make_shared<rref_internal::Message>(std::move(send.message)), 40);
            },
            [&](const rref_internal::Free& free) {
              world_.report.count(Effect::kValuesFreed);
              if (world_.trace.on()) {
                world_.trace.add(absl::StrCat("  frees ", free.rref.to_string()));
              }
              book.on_free(worker_, free.rref);
              values_.erase(free.rref);
            },
            [&](const rref_internal::Confirmed& confirmed) {
              book.on_confirmed(worker_, confirmed.handle);
            },
            [&](const rref_internal::Lost& lost) { lose(lost.handle); },
            [&](const rref_internal::AllConfirmed& all) { on_all_confirmed(all); },
            [&](const rref_internal::FetchReady& ready) {
              book.on_fetched(worker_.id, ready.rref);
              end_fetch(ready.ticket, true);
            },
            [&](const rref_internal::FetchFailed& failed) { end_fetch(failed.ticket, false); },
        },
        action);
  }
}

void References::lose(const rref_internal::Handle& handle) {
  world_.report.count(Effect::kReferencesLost);
  if (world_.trace.on()) {
    world_.trace.add(
        absl::StrCat("  loses ", handle.rref.to_string(), " ", handle.fork.to_string()));
  }
  world_.checker.references.on_lost(worker_, handle, core_.confirmed(handle));
  if (auto nodes = nodes_.find(handle); nodes != nodes_.end()) {
    for (HandleNode* node : nodes->second) node->lost = true;
  }
}

void References::on_all_confirmed(const rref_internal::AllConfirmed& all) {
  auto node = arrivals_.extract(all.waiter);
  if (node.empty()) return;  // they came with a reply: no call waits
  Arrival& arrival = node.mapped();
  const bool ok = arrival.ok && all.status.ok();
  if (ok) {
    for (const HandlePtr& handle : arrival.handles) {
      if (!handle->lost && !core_.confirmed(handle->handle)) {
        world_.violate("B5", "a call starts before its references are confirmed");
      }
    }
    arrived_[arrival.incoming] = std::move(arrival.handles);
  }
  worker_.calls.on_confirmed(arrival.incoming, ok);
  arrived_.erase(arrival.incoming);
}

void References::end_fetch(rref_internal::FetchTicket ticket, bool ok) {
  auto node = fetches_.extract(ticket);
  if (!node.empty()) worker_.calls.on_target(node.mapped().incoming, ok);
}

// ---- Room

// One of this many messages is repeated.
constexpr uint64_t kRepeated = 16;

void References::on_post(WorkerId from, const std::shared_ptr<void>& body) {
  const auto& message = *static_cast<const rref_internal::Message*>(body.get());
  if (world_.trace.on()) world_.trace.add(absl::StrCat("  reads ", to_string(message)));
  rref_internal::Actions actions;
  core_.on_message(from, worker_.id, message, actions);
  perform(actions);
  if (++read_ % kRepeated == 0) repeat(from, message);
}

// S8: a repeated message changes no table. Sessions never repeat messages, so its answers are
// dropped.
void References::repeat(WorkerId from, const rref_internal::Message& message) {
  if (std::holds_alternative<rref_internal::CancelFork>(message))
    return;  // docs/rref_protocol.md, "Repeats"
  const rref_internal::OwnershipGauges before = core_.gauges();
  rref_internal::Actions actions;
  core_.on_message(from, worker_.id, message, actions);
  const rref_internal::OwnershipGauges after = core_.gauges();
  const auto tables = [](const rref_internal::OwnershipGauges& g) {
    return std::tie(g.owners, g.forks, g.users, g.pending_users, g.pending_children, g.tombstones,
                    g.parked_fetches, g.parked_forks);
  };
  if (tables(before) == tables(after)) return;
  world_.violate("S8", "a repeated message changed something: " + to_string(message));
}

void References::on_stale_post(WorkerId from, const std::shared_ptr<void>& body) {
  rref_internal::Actions actions;
  core_.on_message(from, worker_.id, *static_cast<const rref_internal::Message*>(body.get()),
                   actions);
  if (!actions.empty()) world_.violate("S7", "a message of an ended incarnation caused an action");
}

void References::on_peer_dead(WorkerId dead) {
  rref_internal::Actions actions;
  core_.peer_dead(dead, actions);
  if (world_.dice.chance(20)) core_.peer_dead(dead, actions);  // S9: a second notice
  perform(actions);
}

void References::on_event(const Event& event) {
  const RRefId rref{worker_.id, event.a};
  if (making_.erase(rref) > 0) set_value(rref, true, {});
}

void References::settle() {
  while (!released_.empty()) {
    std::vector<rref_internal::Handle> released;
    released.swap(released_);
    for (const rref_internal::Handle& handle : released) {
      world_.checker.references.drop(worker_.slot, handle);
      if (core_.draining()) continue;
      rref_internal::Actions actions;
      core_.drop(handle, actions);
      perform(actions);
    }
  }
}

void References::let_go() {
  held_.clear();
  settle();
  if (world_.shutdown_at_end) {
    for (const auto& [handle, nodes] : nodes_) world_.checker.references.drop(worker_.slot, handle);
    rref_internal::Actions actions;
    core_.begin_shutdown(actions);
    perform(actions);
  }
}

void References::check() const {
  const rref_internal::OwnershipGauges gauges = core_.gauges();
  if (gauges.refused_messages > 0) world_.violate("G4", "an honest message was refused");
  for (const auto& [handle, nodes] : nodes_) {
    if (!nodes.front()->lost) {
      world_.checker.references.check_held(worker_, handle, nodes.front()->owner);
    }
  }
}

std::string References::leftovers() const {
  const rref_internal::OwnershipGauges g = core_.gauges();
  const uint64_t all = g.owners + g.forks + g.users + g.pending_children + g.tombstones +
                       g.parked_fetches + g.parked_forks;
  if (all == 0 && core_.drained() && nodes_.empty() && fetches_.empty() && arrivals_.empty()) {
    return {};
  }
  std::string text = absl::StrCat(
      "owners ", g.owners, " forks ", g.forks, " users ", g.users, " children ", g.pending_children,
      " tombstones ", g.tombstones, " parked ", g.parked_fetches, "+", g.parked_forks, " handles ",
      nodes_.size(), " fetches ", fetches_.size(), " arrivals ", arrivals_.size());
  for (const rref_internal::Leak& leak : core_.leaks())
    absl::StrAppend(&text, "; ", leak.to_string());
  return text;
}

}  // namespace weft::sim
