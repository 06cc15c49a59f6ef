// One run of the simulator: workers on a virtual clock and network, a random program, random
// faults, and the books that know what must be true. All of it follows from one seed.
//
// A run goes through these parts: program and faults; then both stop, everything is mended, and
// within kBound every call and pass must have ended; sometimes calls probe whether all credit has
// come home; then the program lets go of everything, and within kBound no table of a live worker
// may hold anything.
//
// Thread safety: none.
#pragma once

#include <map>
#include <memory>
#include <set>
#include <string>
#include <vector>

#include "weft/tests/sim/membership/membership.h"
#include "weft/tests/sim/profile.h"
#include "weft/tests/sim/report.h"
#include "weft/tests/sim/rooms/step_book.h"
#include "weft/tests/sim/world/checker.h"
#include "weft/tests/sim/world/dice.h"
#include "weft/tests/sim/world/network.h"
#include "weft/tests/sim/world/schedule.h"
#include "weft/tests/sim/world/trace.h"
#include "weft/tests/sim/world/violation.h"
#include "weft/tests/sim/world/worker.h"

namespace weft::sim {

struct Incarnation {
  WorkerId id;
  std::unique_ptr<Worker> worker;  // none: crashed
  bool paused = false;
  TimePoint paused_at{};
  bool slow = false;            // paused for want of a processor, as the kernel knows
  Nanoseconds waited{0};        // so long, before this pause
  std::vector<Event> deferred;  // what came while it was paused
};

// From `from` to `to` (places; equal: the place stood still) nothing passed.
struct Absence {
  uint32_t from = 0, to = 0;
  TimePoint begin, end;
};

class World {
 public:
  // Twice what the longest deadline (0.7 s and 1 s of grace) or a lease (1.8 s and a look) takes.
  static constexpr Nanoseconds kBound = std::chrono::milliseconds(4400);
  // Above this a table grows without bound in runs as short as these.
  static constexpr size_t kMostFrames = 2000;

  // Of every profile but kShutdown.
  World(Profile profile_in, uint64_t seed, Report& report_in, Trace& trace_in);
  ~World();

  // The first violation, if there is one.
  Violation run();
  uint64_t events() const { return events_; }
  uint64_t hash() const { return hash_; }

  void violate(const char* invariant, const std::string& text);

  const std::vector<Incarnation>& incarnations() const { return incarnations_; }
  const Incarnation& incarnation(Slot slot) const { return incarnations_[slot]; }
  Incarnation& incarnation(Slot slot) { return incarnations_[slot]; }
  Slot slot_of(WorkerId id) const;
  Worker* worker(WorkerId id) const;
  uint32_t places() const { return places_; }
  WorkerId newest(uint32_t index) const;
  // Dead for those who must be right: crashed, or a death record stands.
  bool ended(WorkerId id) const;
  bool any_ended() const { return any_ended_; }
  void note_end() { any_ended_ = true; }
  std::vector<Slot> awake() const;  // lives that take part in the program
  ContextFacts& add_context(const ContextId& id);

  const Profile profile;
  Report& report;
  Trace& trace;
  Dice dice;
  Schedule schedule;
  Network network;
  Checker checker;
  std::unique_ptr<Membership> membership;
  std::map<ContextId, ContextFacts> contexts;
  StepBook steps;
  std::vector<Absence> absences;  // that have ended; they may explain a death record

  // Of this run.
  rpc_internal::CreditWindow window;
  rref_internal::OwnershipLimits ownership_limits;
  bool tight_ownership = false;  // bounds that are reached: references may be refused as too many
  unsigned failing_nodes = 0;    // percent of graphs
  unsigned holds = 0;            // percent of actions that reach leaves
  size_t parking = 0;            // calls that may wait for their object without credit
  bool slow_store = false;
  size_t slow_store_fault = 0;
  bool silent_store = false;  // questions, or their answers, are lost
  size_t silent_store_fault = 0;
  bool shutdown_at_end = false;
  // Whose optimizers step, over the owners at which places; the lines are theirs.
  std::map<uint32_t, std::vector<uint32_t>> step_owners;
  uint64_t durable_every = 1;
  bool every_step_durable = false;  // COMMIT is answered when it is written
  bool winding_down = false;
  bool over = false;  // nobody looks any more

  std::string line_of(uint32_t caller) const;
  std::set<std::string> step_lines() const;
  // Its line has nowhere to go back to.
  void new_line(uint32_t caller) { ++line_numbers_[caller]; }

  // This fault made a difference to someone.
  void felt(size_t fault);
  // The process ends by itself.
  void leave(Slot slot);
  bool may_crash() const;  // now, as planned faults go
  // It crashes soon, some percent of the times: the worst moments are rare by chance alone. In the
  // profile of steps eight times as often.
  void doom(Slot victim, unsigned percent);
  // An owner that asks, or is asked, about a step whose caller is dead: the second death in it.
  void doom_in_inquiry(Slot victim);
  void crash(Slot victim);

 private:
  struct Mending {
    Fault fault = Fault::kPause;
    Slot slot = kNobody;
    uint32_t place = 0;
    std::vector<std::pair<uint32_t, uint32_t>> silences{};
    int times = 0;
    bool felt = false;
  };

  // How a run ends; kBound lies between two stages.
  enum class Stage : uint64_t {
    kMend,   // faults and program have stopped
    kProbe,  // calls and passes have ended
    kLetGo,  // all credit has come home
    kEnd,    // nothing is left
  };

  void set_up();
  void begin_group();
  Worker& start(uint32_t index, uint32_t incarnation);
  void handle(const Event& event);
  void settle(Stage stage);
  void probe();
  void check_steps();
  void check_all();

  // program.cc
  void step();
  void step_at(Worker& worker);
  void plan_program();
  void plan_optimizers();

  // faults.cc
  void plan_faults(Nanoseconds span);
  void plan_joiners(Nanoseconds span);
  void strike();
  void mend(size_t number);
  // Returns its number.
  size_t mend_in(Nanoseconds delay, Mending what);
  void pause(Slot victim);
  void slow_down(Slot victim);
  void take_turns(size_t number);  // of a worker that is slow
  void resume(Slot slot);
  void silence_some(Fault fault);
  void mend_all();

  std::vector<Incarnation> incarnations_;
  uint32_t places_ = 0;
  Violation violation_;
  uint64_t events_ = 0;
  uint64_t hash_ = 1469598103934665603ull;
  bool any_ended_ = false;

  uint64_t steps_left_ = 0;
  Nanoseconds step_gap_{};
  std::map<uint32_t, int> line_numbers_;
  std::vector<uint32_t> step_weights_;
  uint64_t step_weight_sum_ = 0;
  std::vector<uint32_t> fault_weights_;
  uint64_t fault_weight_sum_ = 0;
  std::vector<Mending> mendings_;
  TimePoint last_mend_{};
};

std::string describe(const Event& event, const World& world);
std::string describe(const Frame& frame);

}  // namespace weft::sim
