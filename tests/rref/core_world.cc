#include "weft/tests/rref/core_world.h"

#include <algorithm>
#include <utility>
#include <variant>

#include "weft/base/overloaded.h"
#include "weft/base/status.h"

namespace weft::rref_internal {

CoreWorld::Worker& CoreWorld::add_worker(uint32_t index, OwnershipLimits limits) {
  Worker& worker = workers_[index];
  worker.id = {index, 1};
  worker.core = std::make_unique<OwnershipCore>(worker.id, key_for, limits);
  return worker;
}

absl::StatusOr<Handle> CoreWorld::own(uint32_t at, const TypeTag& type) {
  Worker& worker = workers_.at(at);
  WEFT_ASSIGN_OR_RETURN(const Handle handle, worker.core->own(type));
  worker.handles.push_back(handle);
  worker.unfinished.insert(handle.rref);
  return handle;
}

absl::StatusOr<Handle> CoreWorld::remote(uint32_t at, uint32_t owner, const TypeTag& type) {
  Worker& worker = workers_.at(at);
  const WorkerId to = workers_.at(owner).id;
  WEFT_ASSIGN_OR_RETURN(const Handle handle, worker.core->create(to, type));
  worker.handles.push_back(handle);
  post(worker.id, to, CreationCall{handle.rref, handle.fork, type, key_for(handle.rref)});
  return handle;
}

void CoreWorld::finish(uint32_t at, RRefId rref, absl::Status result, std::vector<Handle> holding) {
  Worker& worker = workers_.at(at);
  worker.unfinished.erase(rref);
  for (const Handle& handle : holding) std::erase(worker.handles, handle);
  Actions actions;
  const bool wanted = worker.core->set_value(rref, std::move(result), actions);
  if (wanted) {
    worker.values[rref] = std::move(holding);
  } else {
    for (const Handle& handle : holding) worker.core->drop(handle, actions);
  }
  perform(worker, actions);
}

absl::Status CoreWorld::send(uint32_t at, const std::vector<Handle>& handles, uint32_t to,
                             bool reply) {
  Worker& worker = workers_.at(at);
  Carrier carrier;
  carrier.reply = reply;
  for (const Handle& handle : handles) {
    auto reference = worker.core->fork(handle, workers_.at(to).id);
    if (!reference.ok()) {  // withdraw the references that this carrier has so far
      Actions actions;
      for (const Reference& made : carrier.references) {
        on_failed_send(worker, made, Delivery::kNeverSent);
        worker.core->carrier_failed(made, Delivery::kNeverSent, actions);
      }
      perform(worker, actions);
      return reference.status();
    }
    carrier.references.push_back(*std::move(reference));
  }
  post(worker.id, workers_.at(to).id, std::move(carrier));
  return absl::OkStatus();
}

absl::Status CoreWorld::fetch(uint32_t at, const Handle& handle, WorkerId owner) {
  Worker& worker = workers_.at(at);
  const FetchTicket ticket = next_ticket_++;
  if (owner != worker.id) {
    post(worker.id, owner, Fetch{handle.rref, worker.core->key_of(handle), ticket});
    return absl::OkStatus();
  }
  Actions actions;
  fetchers_[ticket] = worker.id;
  waiting_fetches_.emplace(ticket, handle.rref);
  worker.core->fetch(worker.id, handle.rref, worker.core->key_of(handle), ticket, actions);
  perform(worker, actions);
  return absl::OkStatus();
}

void CoreWorld::drop(uint32_t at, const Handle& handle) {
  Worker& worker = workers_.at(at);
  forget_handle(worker, handle);
  Actions actions;
  worker.core->drop(handle, actions);
  perform(worker, actions);
}

void CoreWorld::deliver(size_t position) {
  const Packet packet = take(position);
  Worker& to = workers_.at(packet.to.index);
  // The session is closed when either incarnation dies, and carries nothing of a worker that is
  // known to be dead.
  if (to.core == nullptr) return;
  const bool stale = packet.to != to.id || to.known_dead.contains(packet.from);
  if (stale && !std::holds_alternative<Message>(packet.body)) return;
  on_arrival(packet);
  Actions actions;
  if (const auto* message = std::get_if<Message>(&packet.body)) {
    to.core->on_message(packet.from, packet.to, *message, actions);
  } else if (const auto* call = std::get_if<CreationCall>(&packet.body)) {
    const Acceptance result = to.core->accept_creation(packet.from, *call, actions);
    on_accept(to, *call, result);
    if (result == Acceptance::kRun) to.unfinished.insert(call->rref);
    if (result == Acceptance::kRefused && packet.copies == 0) {
      post(to.id, packet.from, CreationRefused{call->fork});
    }
  } else if (const auto* refused = std::get_if<CreationRefused>(&packet.body)) {
    to.core->creation_failed(refused->fork, absl::CancelledError("refused by the owner"), actions);
  } else if (const auto* carrier = std::get_if<Carrier>(&packet.body)) {
    const WaiterId waiter = next_waiter_++;
    const auto results = to.core->receive(packet.from, carrier->references, waiter, actions);
    for (const Received& result : results) {
      if (result.status.ok()) to.handles.push_back(result.handle);
    }
    on_receive(to, waiter, *carrier, results);
  } else if (const auto* fetch = std::get_if<Fetch>(&packet.body)) {
    fetchers_[fetch->ticket] = packet.from;
    waiting_fetches_.emplace(fetch->ticket, fetch->rref);
    to.core->fetch(packet.from, fetch->rref, fetch->key, fetch->ticket, actions);
  }
  perform(to, actions);
}

void CoreWorld::duplicate(size_t position) {
  Packet& original = network_.at(position);
  ++original.copies;
  Packet copy = original;
  copy.number = next_packet_++;
  network_.push_back(std::move(copy));
}

// The sender of a packet gives it up, knowing so much of its delivery.
void CoreWorld::give_up(const Packet& packet, Delivery delivery) {
  Worker& from = workers_.at(packet.from.index);
  if (from.id != packet.from || from.core == nullptr) return;
  Actions actions;
  if (const auto* call = std::get_if<CreationCall>(&packet.body)) {
    from.core->creation_failed(call->fork, absl::DeadlineExceededError("creation timed out"),
                               actions);
  } else if (const auto* carrier = std::get_if<Carrier>(&packet.body)) {
    for (const Reference& reference : carrier->references) {
      on_failed_send(from, reference, delivery);
      from.core->carrier_failed(reference, delivery, actions);
    }
  }
  perform(from, actions);
}

void CoreWorld::withdraw(size_t position) { give_up(take(position), Delivery::kNeverSent); }

void CoreWorld::discard(size_t position) {
  const Packet packet = take(position);
  Worker& to = workers_.at(packet.to.index);
  if (to.core == nullptr || packet.to != to.id || to.known_dead.contains(packet.from)) return;
  on_arrival(packet);
  Actions actions;
  to.core->discard(packet.from, std::get<Carrier>(packet.body).references, actions);
  perform(to, actions);
}

void CoreWorld::time_out(size_t position) {
  network_.at(position).timed_out = true;
  const Packet packet = network_.at(position);  // a copy: giving up may send packets
  give_up(packet, Delivery::kUnknown);
}

void CoreWorld::kill(uint32_t at) {
  Worker& worker = workers_.at(at);
  worker.core.reset();
  worker.handles.clear();
  worker.values.clear();
  worker.unfinished.clear();
}

void CoreWorld::restart(uint32_t at) {
  Worker& worker = workers_.at(at);
  ++worker.id.incarnation;
  worker.core = std::make_unique<OwnershipCore>(worker.id, key_for);
  worker.known_dead.clear();
}

void CoreWorld::announce_death(uint32_t at, WorkerId dead) {
  Worker& worker = workers_.at(at);
  if (worker.core == nullptr) return;
  worker.known_dead.insert(dead);
  Actions actions;
  worker.core->peer_dead(dead, actions);
  perform(worker, actions);
}

void CoreWorld::begin_shutdown(uint32_t at) {
  Worker& worker = workers_.at(at);
  worker.handles.clear();
  worker.values.clear();
  Actions actions;
  worker.core->begin_shutdown(actions);
  perform(worker, actions);
}

void CoreWorld::close(uint32_t at) {
  Worker& worker = workers_.at(at);
  Actions actions;
  worker.core->close(actions);
  perform(worker, actions);
}

void CoreWorld::perform(Worker& at, const Actions& actions) {
  for (const Action& action : actions) {
    on_action(at, action);
    std::visit(Overloaded{
                   [&](const Send& send) { post(at.id, send.to, send.message); },
                   [&](const Free& free) {
                     // When a value that holds references is destroyed, its references are dropped.
                     auto value = at.values.extract(free.rref);
                     if (value.empty()) return;
                     for (const Handle& handle : value.mapped()) {
                       Actions more;
                       at.core->drop(handle, more);
                       perform(at, more);
                     }
                   },
                   [&](const Lost& lost) { std::erase(at.handles, lost.handle); },
                   [&](const FetchReady& ready) {
                     end_fetch(at.id, {ready.rref, ready.ticket, absl::OkStatus()});
                   },
                   [&](const FetchFailed& failed) {
                     end_fetch(at.id, {failed.rref, failed.ticket, failed.status});
                   },
                   [](const OneOf<Confirmed, AllConfirmed> auto&) {},  // on_action has seen them
               },
               action);
  }
}

void CoreWorld::end_fetch(WorkerId owner, FetchReply reply) {
  const WorkerId to = fetchers_.at(reply.ticket);
  waiting_fetches_.erase(reply.ticket);
  if (to != owner) post(owner, to, std::move(reply));
}

void CoreWorld::post(WorkerId from, WorkerId to, Body body) {
  network_.push_back({next_packet_++, from, to, std::move(body)});
}

CoreWorld::Packet CoreWorld::take(size_t position) {
  Packet packet = std::move(network_.at(position));
  network_.erase(network_.begin() + position);
  return packet;
}

void CoreWorld::forget_handle(Worker& at, const Handle& handle) {
  auto found = std::find(at.handles.begin(), at.handles.end(), handle);
  if (found != at.handles.end()) at.handles.erase(found);
}

}  // namespace weft::rref_internal
