// The interface of one protocol of a worker (references, passes, steps) for the simulator's world.
// A further protocol is one more room.
#pragma once

#include <memory>
#include <string>

#include "weft/base/ids.h"
#include "weft/tests/sim/world/schedule.h"

namespace weft::sim {

class Room {
 public:
  virtual ~Room() = default;

  // A post for this room, delivered once, from a live peer. The body is shared with the sender's
  // session.
  virtual void on_post(WorkerId from, const std::shared_ptr<void>& body) = 0;
  // The same, from an incarnation that is dead for this worker. It must change nothing.
  virtual void on_stale_post(WorkerId /*from*/, const std::shared_ptr<void>& /*body*/) {}
  virtual void on_peer_dead(WorkerId dead) = 0;
  virtual void on_event(const Event& event) = 0;
  // Called at the end of every event at this worker.
  virtual void settle() {}
  // The program is over: releases everything.
  virtual void let_go() = 0;
  // Checks what must be true between two events, and reports violations to the checker.
  virtual void check() const {}
  // Returns what is left, or an empty string.
  virtual std::string leftovers() const = 0;
};

}  // namespace weft::sim
