#include "weft/tests/sim/world/worker.h"

#include "absl/strings/str_cat.h"
#include "weft/tests/sim/world/world.h"

namespace weft::sim {

using rpc_internal::Topic;

Worker::Worker(World& world_in, WorkerId id_in, Slot slot_in)
    : world(world_in),
      id(id_in),
      slot(slot_in),
      sessions(*this),
      references(*this),
      passes(*this),
      steps(*this),
      calls(*this) {
  rooms_[static_cast<size_t>(Topic::kRRef)] = &references;
  rooms_[static_cast<size_t>(Topic::kAutograd)] = &passes;
  rooms_.back() = &steps;  // its messages are calls
}

void Worker::on_event(const Event& event) {
  switch (event.kind) {
    case EventKind::kArrive:
      return sessions.on_frame(event.a);
    case EventKind::kClosed:
    case EventKind::kDialled:
    case EventKind::kAck:
    case EventKind::kDeadlines:
      return sessions.on_event(event);
    case EventKind::kRun:
    case EventKind::kFinish:
      return calls.on_event(event);
    case EventKind::kStepTimer:
      return steps.on_event(event);
    case EventKind::kValue:
      return references.on_event(event);
    case EventKind::kPassWork:
    case EventKind::kPassTimer:
    case EventKind::kHold:
    case EventKind::kPiggybacked:
      return passes.on_event(event);
    default:
      return;
  }
}

void Worker::on_post(WorkerId from, uint64_t topic, const std::shared_ptr<void>& body) {
  if (topic == static_cast<uint64_t>(Topic::kMembership)) {
    return world.membership->on_post(*this, from, body);
  }
  rooms_[topic]->on_post(from, body);
}

void Worker::on_stale_post(WorkerId from, uint64_t topic, const std::shared_ptr<void>& body) {
  if (topic != static_cast<uint64_t>(Topic::kMembership)) {
    rooms_[topic]->on_stale_post(from, body);
  }
}

void Worker::on_death_record(WorkerId dead) {
  if (!known_dead.insert(dead).second) return;
  if (world.trace.on())
    world.trace.add(absl::StrCat("  hears that ", dead.to_string(), " is dead"));
  sessions.end_peer(dead);
  for (Room* room : rooms_) {
    if (room != nullptr) room->on_peer_dead(dead);
  }
}

void Worker::fence(const std::vector<WorkerId>& all) {
  if (std::exchange(fenced, true)) return;
  world.report.count(Effect::kFenced);
  if (world.trace.on()) world.trace.add(absl::StrCat("  ", id.to_string(), " fences itself"));
  // Stop all calls first, because a room that loses one peer may call another.
  for (const WorkerId worker : all) {
    if (worker != id) sessions.set_valid_until(worker, TimePoint::min());
  }
  for (const WorkerId worker : all) {
    if (worker != id) on_death_record(worker);
  }
}

void Worker::settle() {
  for (Room* room : rooms_) {
    if (room != nullptr) room->settle();
  }
}

void Worker::let_go() {
  for (Room* room : rooms_) {
    if (room != nullptr) room->let_go();
  }
}

void Worker::check() const {
  for (const Room* room : rooms_) {
    if (room != nullptr) room->check();
  }
}

std::string Worker::leftovers() const {
  std::string all;
  const auto add = [&](std::string_view what, const std::string& left) {
    if (!left.empty()) absl::StrAppend(&all, " ", std::string(what), ": ", left, ";");
  };
  add("sessions", sessions.leftovers());
  add("calls", calls.leftovers());
  add("steps", steps.leftovers());
  if (world.membership->any_severed()) return all;
  add("references", references.leftovers());
  add("passes", passes.leftovers());
  return all;
}

}  // namespace weft::sim
