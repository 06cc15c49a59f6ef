// One incarnation of a worker in the simulator: sessions, calls and rooms, connected as in a real
// one.
//
// Thread safety: none.
#pragma once

#include <array>
#include <set>
#include <string>
#include <vector>

#include "weft/tests/sim/rooms/calls.h"
#include "weft/tests/sim/rooms/passes.h"
#include "weft/tests/sim/rooms/references.h"
#include "weft/tests/sim/rooms/sessions.h"
#include "weft/tests/sim/rooms/steps.h"

namespace weft::sim {

class World;

class Worker {
 public:
  Worker(World& world_in, WorkerId id_in, Slot slot_in);

  void on_event(const Event& event);
  void on_post(WorkerId from, uint64_t topic, const std::shared_ptr<void>& body);
  void on_stale_post(WorkerId from, uint64_t topic, const std::shared_ptr<void>& body);

  // This incarnation is dead, for good.
  void on_death_record(WorkerId dead);
  // This worker was declared dead: all of these are gone for it.
  void fence(const std::vector<WorkerId>& all);

  void settle();
  void let_go();
  void check() const;
  std::string leftovers() const;

  World& world;
  const WorkerId id;
  const Slot slot;
  bool fenced = false;
  std::set<WorkerId> known_dead;

  Sessions sessions;
  References references;
  Passes passes;
  Steps steps;
  Calls calls;  // last, because its calls hold handles

 private:
  // A further protocol is one more room.
  std::array<Room*, rpc_internal::kTopics + 1> rooms_{};  // by topic; then the one without
};

}  // namespace weft::sim
