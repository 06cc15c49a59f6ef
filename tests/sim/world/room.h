// One protocol of a worker, as the simulator's world sees it: references, passes, and what comes
// later (steps of an optimizer) are rooms of a worker.
#pragma once

#include <memory>
#include <string>

#include "weft/base/ids.h"
#include "weft/tests/sim/world/schedule.h"

namespace weft::sim {

class Room {
 public:
  virtual ~Room() = default;

  // A post for this room, once, from a live peer. The body is shared with the sender's session.
  virtual void on_post(WorkerId from, const std::shared_ptr<void>& body) = 0;
  // The same from a life that has ended for this worker: must change nothing.
  virtual void on_stale_post(WorkerId /*from*/, const std::shared_ptr<void>& /*body*/) {}
  virtual void on_peer_dead(WorkerId dead) = 0;
  virtual void on_event(const Event& event) = 0;
  // At the end of every event at this worker.
  virtual void settle() {}
  // The program is over: it lets go of everything.
  virtual void let_go() = 0;
  // What must be true between two events; reports to the checker.
  virtual void check() const {}
  // Empty if nothing is left, else what.
  virtual std::string leftovers() const = 0;
};

}  // namespace weft::sim
