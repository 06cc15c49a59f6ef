// The calls that programs make in a DriverWorld, and how they are served.
#include <algorithm>
#include <utility>

#include <gtest/gtest.h>

#include "absl/strings/str_cat.h"
#include "weft/base/status.h"
#include "weft/proto/weft.pb.h"
#include "weft/rpc/transport/status_wire.h"
#include "weft/rref/internal/rref_wire.h"
#include "weft/tests/rref/driver_world.h"

namespace weft::rref_internal {
using What = DriverWorld::Happened::What;

// A value that may hold references itself.
struct DriverWorld::Value {
  Value(DriverWorld& world_in, Node& at_in, RRefId rref_in, std::vector<RRefHandlePtr> holding_in)
      : world(world_in), at(at_in), rref(rref_in), holding(std::move(holding_in)) {
    ++world.values_;
    world.had_value_.insert(rref);
  }
  ~Value() {
    --world.values_;
    world.event(at, What::kFrees, {rref, {}});
  }
  DriverWorld& world;
  Node& at;
  RRefId rref;
  std::vector<RRefHandlePtr> holding;
};

// ---- Programs ----

absl::StatusOr<Handle> DriverWorld::own(Node& at) {
  // A `remote` to the worker itself, so that its function can complete later. The call does not
  // pass the agent.
  WEFT_ASSIGN_OR_RETURN(RRefDriver::Created created, at.driver->create(at.id, type_));
  const Handle handle = created.handle->handle();
  WEFT_ASSIGN_OR_RETURN(at.slots[handle.rref], at.driver->accept_creation(at.id, created.creation));
  at.handles.push_back(std::move(created.handle));
  at.watched.push_back({handle, true});
  return handle;
}

absl::StatusOr<Handle> DriverWorld::remote(Node& at, WorkerId owner) {
  WEFT_ASSIGN_OR_RETURN(RRefDriver::Created created, at.driver->create(owner, type_));
  auto call = std::make_shared<Outgoing>();
  call->to = owner;
  call->kind = Kind::kCreation;
  call->created = created.handle->handle();
  const Handle handle = *call->created;
  at.handles.push_back(std::move(created.handle));
  at.watched.push_back({handle, false});
  wire::Meta meta;
  meta.set_creation(created.creation);
  Frame frame;
  frame.meta = meta.SerializeAsString();
  frame.header.function = kCreate;
  make_call(at, call, std::move(frame));
  return handle;
}

void DriverWorld::finish(Node& at, RRefId rref, absl::Status result,
                         std::vector<RRefHandlePtr> holding) {
  for (const RRefHandlePtr& handle : holding) {
    std::erase(at.handles, handle);
    std::erase_if(at.watched, [&](const Watch& w) { return w.handle == handle->handle(); });
  }
  const auto slot = at.slots.extract(rref);
  if (slot.empty()) return;  // it has completed already, or never ran
  if (result.ok()) {
    slot.mapped()->set(
        Object(std::make_shared<Value>(*this, at, rref, std::move(holding)), &type_));
  } else {
    slot.mapped()->fail(std::move(result));
  }
}

absl::StatusOr<std::vector<Reference>> DriverWorld::send(Node& at,
                                                         const std::vector<RRefHandlePtr>& handles,
                                                         Node& to, bool reply) {
  // A reply answers a call, which `to` makes now.
  if (reply) {
    auto ask = std::make_shared<Outgoing>();
    ask->to = at.id;
    ask->kind = Kind::kReply;
    Frame frame;
    frame.header.function = kAsk;
    make_call(to, ask, std::move(frame));
    settle();
  }
  std::vector<CarriedReferencePtr> carried;
  wire::Meta meta;
  for (const RRefHandlePtr& handle : handles) {
    // On an error, the references that were made for this message are withdrawn.
    WEFT_ASSIGN_OR_RETURN(CarriedReferencePtr next, at.driver->carry(handle, to.id));
    meta.add_references(next->wire());
    carried.push_back(std::move(next));
  }
  Frame frame;
  frame.meta = meta.SerializeAsString();
  const std::vector<Reference> references = references_of(wires_of(frame));
  if (reply) {
    auto asked = at.asked.extract(at.asked.find(to.id));
    asked.mapped()->reply(std::move(frame));
    for (const CarriedReferencePtr& each : carried) each->delivered();
  } else {
    auto call = std::make_shared<Outgoing>();
    call->to = to.id;
    call->carried = std::move(carried);
    frame.header.function = kCarry;
    make_call(at, call, std::move(frame));
  }
  return references;
}

void DriverWorld::fetch(Node& at, RRefId rref, WorkerId owner) {
  const auto held = std::find_if(at.handles.begin(), at.handles.end(),
                                 [&](const RRefHandlePtr& each) { return each->rref() == rref; });
  const std::string target = encode((*held)->target());
  if (owner == at.id) {
    at.driver->resolve_target(at.id, target, [this, &at, rref](absl::StatusOr<Object> object) {
      event(at, What::kGives, {rref, {}}, object.status());
    });
    return;
  }
  auto call = std::make_shared<Outgoing>();
  call->to = owner;
  call->kind = Kind::kFetch;
  call->rref = rref;
  wire::Meta meta;
  meta.set_target(target);
  Frame frame;
  frame.meta = meta.SerializeAsString();
  frame.header.function = kToHere;
  make_call(at, call, std::move(frame));
}

void DriverWorld::drop(Node& at, const RRefHandlePtr& handle) {
  const Handle id = handle->handle();
  const auto watched = std::find_if(at.watched.begin(), at.watched.end(),
                                    [&](const Watch& watch) { return watch.handle == id; });
  if (watched != at.watched.end()) at.watched.erase(watched);
  std::erase(at.handles, handle);
}

// ---- Calls ----

// The handles that a carrier with these references brings to a worker.
std::vector<DriverWorld::Watch> DriverWorld::watches_of(WorkerId at,
                                                        const std::vector<std::string>& wires) {
  std::vector<Watch> watches;
  for (const Reference& each : references_of(wires)) {
    watches.push_back({{each.rref, each.owner == at ? ForkId() : each.fork}});
  }
  return watches;
}

void DriverWorld::make_call(Node& at, const OutgoingPtr& call, Frame frame) {
  call->from = at.id;
  call->id = at.agent->call(
      call->to, std::move(frame), "scenario", kNever,
      [this, &at, call](absl::StatusOr<Frame> reply) { answered(at, *call, std::move(reply)); });
  calls_[{at.id, call->id.number}] = call;
}

void DriverWorld::answered(Node& at, Outgoing& call, absl::StatusOr<Frame> reply) {
  // The runtime's rule: only a call that never left takes its references back.
  if (reply.ok() || ran_of(reply.status()) != Ran::kNo || !worker_of(reply.status()).empty()) {
    for (const CarriedReferencePtr& each : call.carried) each->delivered();
  }
  call.carried.clear();
  if (ending_ || at.killed) return;
  absl::Status status = reply.status();
  if (reply.ok() && (reply->header.flags & kFlagError) != 0) {
    status = rpc_internal::decode_status(meta_of(*reply).status());
  }
  if (call.created && !status.ok()) {
    at.driver->creation_failed(*call.created, call.to, call.failure.ok() ? status : call.failure);
  } else if (call.kind == Kind::kReply && status.ok()) {
    auto references = at.driver->receive(call.to, wires_of(*reply));
    if (references.ok()) {
      at.early[next_carrier_++] = watches_of(at.id, wires_of(*reply));
      take_in(at, *std::move(references));
    } else {
      event(at, What::kStarts, {}, references.status());
    }
  }
}

void DriverWorld::take_in(Node& at, ReferenceHook::References references) {
  for (const AnyReferencePtr& reference : references) {
    auto handle = std::dynamic_pointer_cast<RRefHandle>(reference);
    at.watched.push_back({handle->handle(), false});
    at.handles.push_back(std::move(handle));
  }
}

void DriverWorld::serve(Node& at, const std::shared_ptr<rpc_internal::IncomingCall>& call,
                        bool unread) {
  const wire::Meta meta = meta_of(call->frame());
  switch (call->header().function) {
    case kCreate: {
      const RRefId rref = decode_creation(meta.creation())->rref;
      auto slot = at.driver->accept_creation(call->from(), meta.creation());
      if (slot.ok()) {
        event(at, What::kRuns, {rref, {}});
        at.slots[rref] = *std::move(slot);
        call->reply(Frame());
      } else {
        event(at, absl::IsAlreadyExists(slot.status()) ? What::kRepeated : What::kRefuses,
              {rref, {}});
        call->reply(with_ran(std::move(slot).status(), Ran::kNo));
      }
      return;
    }
    case kToHere:
      at.driver->resolve_target(
          call->from(), meta.target(), [this, &at, call](absl::StatusOr<Object> object) {
            event(at, What::kGives, {decode_target(meta_of(call->frame()).target())->rref, {}},
                  object.status());
            call->reply(object.ok() ? absl::StatusOr<Frame>(Frame()) : object.status());
          });
      return;
    case kAsk:
      at.asked.emplace(call->from(), call);
      return;
    default:
      if (unread) {
        at.driver->discard(call->from(), wires_of(call->frame()));
        call->reply(with_ran(absl::UnimplementedError("no such function"), Ran::kNo));
      } else {
        serve_carrier(at, call, wires_of(call->frame()));
      }
  }
}

void DriverWorld::serve_carrier(Node& at, const std::shared_ptr<rpc_internal::IncomingCall>& call,
                                const std::vector<std::string>& wires) {
  const uint64_t carrier = next_carrier_++;
  std::vector<Watch> watches = watches_of(at.id, wires);
  if (early_carriers_.contains(carrier)) {
    auto references = at.driver->receive(call->from(), wires);
    if (references.ok()) {
      at.early[carrier] = std::move(watches);
      take_in(at, *std::move(references));
    } else {
      event(at, What::kStarts, {}, references.status());
    }
    call->reply(Frame());
    return;
  }
  at.waiting[carrier] = std::move(watches);
  at.driver->receive_confirmed(
      call->from(), wires,
      [this, &at, call, carrier](absl::StatusOr<ReferenceHook::References> references) {
        watch_for_confirmation(at, at.waiting[carrier]);
        Happened happened{at.id, What::kStarts, {}, references.status(), nullptr};
        for (const Watch& each : at.waiting[carrier]) happened.handles.push_back(each.handle);
        at.waiting.erase(carrier);
        if (!ending_) on_event(happened);
        if (references.ok()) {
          take_in(at, *std::move(references));
          for (Watch& each : at.watched) {
            each.confirmed = each.confirmed || at.driver->confirmed(each.handle);
          }
          call->reply(Frame());
        } else {
          call->reply(with_ran(std::move(references).status(), Ran::kNo));
        }
      });
}

}  // namespace weft::rref_internal
