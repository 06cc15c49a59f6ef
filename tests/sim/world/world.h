// One run of the simulator: workers on a virtual clock and network, a random program, random
// faults, and the books that know what must be true. One seed determines everything.
//
// A run has these parts, kBound apart. First come program and faults. Then both stop, and all
// faults are repaired. After kBound every call and pass must be complete. In most runs, calls then
// probe whether all credit was returned. Then the program releases everything. After kBound no
// table of a live worker may hold anything.
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
  std::unique_ptr<Worker> worker;  // null: crashed
  bool paused = false;
  TimePoint paused_at{};
  bool slow = false;            // paused for lack of a processor, as the kernel knows
  Nanoseconds waited{0};        // the sum of such pauses before this one
  std::vector<Event> deferred;  // events that arrived while it was paused
};

// No message passed from slot `from` to slot `to`. If they are equal, the worker stood still.
struct Absence {
  uint32_t from = 0, to = 0;
  TimePoint begin, end;
};

class World {
 public:
  // Twice the longest deadline (0.7 s and 1 s of grace) or lease (1.8 s and a look).
  static constexpr Nanoseconds kBound = std::chrono::milliseconds(4400);
  // In runs as short as these, a larger table grows without bound.
  static constexpr size_t kMostFrames = 2000;

  // For every profile except kShutdown.
  World(Profile profile_in, uint64_t seed, Report& report_in, Trace& trace_in);
  ~World();

  // Returns the first violation, if there is one.
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
  // True if others may take it for dead: it crashed, or it has a death record.
  bool ended(WorkerId id) const;
  bool any_ended() const { return any_ended_; }
  void note_end() { any_ended_ = true; }
  std::vector<Slot> awake() const;  // incarnations that take part in the program
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
  std::vector<Absence> absences;  // past ones; they may explain a death record

  // Properties of this run.
  rpc_internal::CreditWindow window;
  rref_internal::OwnershipLimits ownership_limits;
  bool tight_ownership = false;  // limits that are reached: references may be refused
  unsigned failing_nodes = 0;    // percent of graphs
  unsigned holds = 0;            // percent of actions that reach leaves
  size_t parking = 0;            // calls that may wait for their object without credit
  bool slow_store = false;
  size_t slow_store_fault = 0;
  bool silent_store = false;  // questions, or their answers, are lost
  size_t silent_store_fault = 0;
  bool shutdown_at_end = false;
  // The slots whose optimizers step, and the owners' slots. Each key has a step sequence of its
  // own.
  std::map<uint32_t, std::vector<uint32_t>> step_owners;
  uint64_t durable_every = 1;
  bool every_step_durable = false;  // COMMIT is answered when the step is on disk
  bool winding_down = false;
  bool over = false;  // workers look at their peers no more

  std::string sequence_of(uint32_t caller) const;
  std::set<std::string> step_lines() const;
  // Starts a new step sequence, because the old one has no state to go back to.
  void new_sequence(uint32_t caller) { ++sequence_numbers_[caller]; }

  // Records that this fault had an effect.
  void felt(size_t fault);
  // The process exits by itself.
  void leave(Slot slot);
  bool may_crash() const;  // whether the plan of faults allows a crash now
  // Makes `victim` crash soon, with this probability. The worst moments are rare by chance alone.
  // In profile `steps` it is eight times as likely.
  void doom(Slot victim, unsigned percent);
  // For an owner that asks, or is asked, about a step whose caller is dead. It would be the second
  // death.
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

  // The stages of the end of a run, kBound apart.
  enum class Stage : uint64_t {
    kMend,   // faults and program have stopped
    kProbe,  // calls and passes are complete
    kLetGo,  // all credit was returned
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
  // Returns the number of the mending.
  size_t mend_in(Nanoseconds delay, Mending what);
  void pause(Slot victim);
  void slow_down(Slot victim);
  void take_turns(size_t number);  // for a worker that is slow
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
  std::map<uint32_t, int> sequence_numbers_;
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
