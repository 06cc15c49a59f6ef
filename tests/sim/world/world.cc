#include "weft/tests/sim/world/world.h"

#include <algorithm>
#include <utility>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "weft/tests/sim/membership/lease_membership.h"

namespace weft::sim {
namespace {

constexpr uint64_t kFullCheckEvery = 64;
constexpr uint64_t kMostEvents = 200000;

}  // namespace

World::World(Profile profile_in, uint64_t seed, Report& report_in, Trace& trace_in)
    : profile(profile_in),
      report(report_in),
      trace(trace_in),
      dice(seed),
      network(*this),
      checker(*this),
      steps(*this) {
  // OracleMembership is cheaper. With it, runs reach more of the other protocols.
  if (seed % 2 == 0 || profile == Profile::kJoining) {
    membership = std::make_unique<LeaseMembership>(*this);
  } else {
    membership = std::make_unique<OracleMembership>(*this);
  }
}

World::~World() = default;

void World::violate(const char* invariant, const std::string& text) {
  if (violation_.invariant.empty()) violation_ = {invariant, text, events_};
}

Slot World::slot_of(WorkerId id) const {
  for (Slot slot = 0; slot < incarnations_.size(); ++slot) {
    if (incarnations_[slot].id == id) return slot;
  }
  return kNobody;
}

Worker* World::worker(WorkerId id) const {
  const Slot slot = slot_of(id);
  return slot == kNobody ? nullptr : incarnations_[slot].worker.get();
}

WorkerId World::newest(uint32_t index) const {
  WorkerId newest;
  for (const Incarnation& incarnation : incarnations_) {
    if (incarnation.id.index == index && incarnation.id.incarnation > newest.incarnation)
      newest = incarnation.id;
  }
  return newest;
}

bool World::ended(WorkerId id) const {
  return worker(id) == nullptr || membership->declared_dead(id) || membership->severed(id);
}

std::vector<Slot> World::awake() const {
  std::vector<Slot> all;
  for (Slot slot = 0; slot < incarnations_.size(); ++slot) {
    const Incarnation& incarnation = incarnations_[slot];
    if (incarnation.worker != nullptr && !incarnation.paused &&
        membership->takes_part(*incarnation.worker)) {
      all.push_back(slot);
    }
  }
  return all;
}

ContextFacts& World::add_context(const ContextId& id) {
  ContextFacts& facts = contexts[id];
  facts.id = id;
  return facts;
}

Worker& World::start(uint32_t index, uint32_t incarnation) {
  const Slot slot = static_cast<Slot>(incarnations_.size());
  incarnations_.emplace_back();
  incarnations_[slot].id = {index, incarnation};
  incarnations_[slot].worker = std::make_unique<Worker>(*this, incarnations_[slot].id, slot);
  Worker& worker = *incarnations_[slot].worker;
  worker.sessions.add_peer(slot, false);
  return worker;
}

void World::set_up() {
  places_ = static_cast<uint32_t>(dice.between(3, 6));
  Network::Manner manner;
  manner.delay_low = dice.micros(5, 100);
  manner.delay_high = manner.delay_low + dice.micros(10, 1500);
  const bool noisy = dice.chance(70);
  manner.duplicates = noisy ? static_cast<unsigned>(dice.below(50)) : 0;
  manner.overtaking = noisy ? static_cast<unsigned>(dice.below(200)) : 0;
  network.set_manner(manner);
  if (dice.chance(50)) {
    window.calls = dice.between(1, 6);
    window.bytes = dice.between(700, 4000);
    window.max_queued_calls = dice.between(2, 8);
    window.max_queued_bytes = dice.between(1000, 8000);
  }
  parking = dice.chance(40) ? dice.below(3) : 1000;
  window.max_result_bytes = dice.between(6000, 20000);
  tight_ownership = dice.chance(15);
  if (tight_ownership) {
    ownership_limits.tombstones_per_creator = static_cast<uint32_t>(dice.between(4, 16));
    ownership_limits.withdrawn_per_owner = ownership_limits.tombstones_per_creator;
    ownership_limits.parked_per_worker = static_cast<uint32_t>(dice.between(1, 4));
  }
  failing_nodes = dice.chance(25) ? static_cast<unsigned>(dice.between(5, 30)) : 0;
  holds = dice.chance(40) ? 25 : 0;
  shutdown_at_end = dice.chance(30);
  plan_program();

  begin_group();
  steps_left_ = dice.between(20, 110);
  const uint64_t pace = dice.below(100);
  step_gap_ = dice.micros(20, pace < 65 ? 600 : pace < 85 ? 8000 : 60000);
  const Nanoseconds span = step_gap_ * static_cast<int64_t>(steps_left_);
  schedule.in(step_gap_, EventKind::kStep, kNobody);
  plan_faults(span);
  if (profile == Profile::kJoining) plan_joiners(span);
}

// In profile `joining` some slots are taken at first. Their workers have met, or know each other
// without having met (a static group), or join one after the other.
void World::begin_group() {
  const bool joining = profile == Profile::kJoining;
  const uint32_t first = joining ? static_cast<uint32_t>(dice.between(1, places_ - 1)) : places_;
  for (uint32_t index = 0; index < first; ++index) start(index, 1);
  const uint64_t manner = joining ? dice.below(3) : 0;
  if (manner == 2) {
    for (Slot slot = 0; slot < first; ++slot) membership->on_join(*incarnations_[slot].worker);
    return;
  }
  for (Slot a = 0; a < first && manner == 0; ++a) {
    for (Slot b = a + 1; b < first; ++b) {
      const int connection = network.connect(a, b);
      incarnations_[a].worker->sessions.meet(b, connection);
      incarnations_[b].worker->sessions.meet(a, connection);
    }
  }
  membership->on_start();
  if (manner == 1) membership->on_static_join();
}

Violation World::run() {
  set_up();
  while (violation_.invariant.empty() && !schedule.empty()) {
    const Event event = schedule.pop();
    if (event.slot != kNobody) {
      Incarnation& incarnation = incarnations_[event.slot];
      if (incarnation.worker == nullptr) {
        if (event.kind == EventKind::kArrive) network.drop(event.a);
        continue;
      }
      if (incarnation.paused) {
        incarnation.deferred.push_back(event);
        continue;
      }
    }
    ++events_;
    for (const uint64_t part :
         {static_cast<uint64_t>(event.when.time_since_epoch().count()),
          (uint64_t{event.slot} << 8) | static_cast<uint64_t>(event.kind), event.a}) {
      hash_ = (hash_ ^ part) * 1099511628211ull;
    }
    if (trace.on()) trace.begin(absl::StrCat(events_, " ", describe(event, *this)));
    handle(event);
    if (event.slot != kNobody && incarnations_[event.slot].worker != nullptr) {
      incarnations_[event.slot].worker->settle();
    }
    if (events_ % kFullCheckEvery == 0) check_all();
    if (events_ > kMostEvents) violate("liveness", "the run does not end");
  }
  if (violation_.invariant.empty()) check_all();
  return violation_;
}

void World::handle(const Event& event) {
  if (event.kind == EventKind::kStore || event.kind == EventKind::kLook) {
    return membership->on_event(event);
  }
  if (event.slot != kNobody) return incarnations_[event.slot].worker->on_event(event);
  switch (event.kind) {
    case EventKind::kStep:
      return step();
    case EventKind::kFault:
      return strike();
    case EventKind::kMend:
      return mend(event.a);
    case EventKind::kLease:
      return membership->on_event(event);
    case EventKind::kSettle:
      return settle(static_cast<Stage>(event.a));
    default:
      return;
  }
}

void World::settle(Stage stage) {
  const auto each = [this](auto&& visit) {
    for (Incarnation& incarnation : incarnations_) {
      if (incarnation.worker != nullptr) visit(*incarnation.worker);
    }
  };
  switch (stage) {
    case Stage::kMend:
      winding_down = true;
      mend_all();
      break;
    case Stage::kProbe:
      checker.calls.check_all_resolved();
      checker.passes.check_ended();
      membership->check_ended();
      check_steps();
      each([this](Worker& worker) {
        if (worker.passes.running() > 0) {
          violate("I6", worker.id.to_string() + " still takes part in a pass");
        }
      });
      if (dice.chance(90)) probe();
      break;
    case Stage::kLetGo:
      checker.calls.check_all_resolved();
      each([](Worker& worker) {
        worker.let_go();
        worker.settle();
      });
      break;
    case Stage::kEnd:
      over = true;
      each([this](Worker& worker) {
        const std::string left = worker.leftovers();
        if (!left.empty()) violate("nothing left", worker.id.to_string() + left);
      });
      return;
  }
  schedule.in(kBound, EventKind::kSettle, kNobody, static_cast<uint64_t>(stage) + 1);
}

// At rest, all owners that take steps of a step sequence hold the same steps of it.
void World::check_steps() {
  for (const auto& [caller, places] : step_owners) {
    const std::string sequence = sequence_of(caller);
    std::vector<WorkerId> owners;
    for (const Incarnation& incarnation : incarnations_) {
      const bool owns =
          std::find(places.begin(), places.end(), incarnation.id.index) != places.end();
      if (!owns || incarnation.worker == nullptr || ended(incarnation.id)) continue;
      if (!incarnation.worker->steps.owner().restored(sequence)) owners.push_back(incarnation.id);
    }
    if (!owners.empty()) steps.check_same(sequence, owners);
  }
}

// Only one direction of each pair: the answer would return credit in the other direction.
void World::probe() {
  const bool upwards = dice.chance(50);
  for (Slot slot = 0; slot < incarnations_.size(); ++slot) {
    if (incarnations_[slot].worker == nullptr) continue;
    Worker& worker = *incarnations_[slot].worker;
    for (const WorkerId peer : worker.sessions.live_peers()) {
      if ((slot_of(peer) > slot) == upwards) worker.calls.probe(peer);
    }
  }
}

void World::check_all() {
  for (const Incarnation& incarnation : incarnations_) {
    if (incarnation.worker == nullptr) continue;
    incarnation.worker->check();
    if (incarnation.worker->sessions.left().most_frames > kMostFrames) {
      violate("bounds", incarnation.id.to_string() + " keeps too many frames");
    }
  }
}

// ---- descriptions

namespace {

constexpr const char* kEventNames[] = {
    "arrive", "closed", "dialled", "ack",   "deadlines",  "run",         "finish",
    "value",  "work",   "timer",   "hold",  "step timer", "piggybacked", "store says",
    "lease",  "look",   "step",    "fault", "mend",       "settle"};
static_assert(std::size(kEventNames) == kEventKinds);

}  // namespace

std::string describe(const Event& event, const World& world) {
  const double ms = static_cast<double>(event.when.time_since_epoch().count()) / 1e6;
  return absl::StrCat(
      absl::StrFormat("%.3f ms ", ms),
      event.slot == kNobody ? "world" : world.incarnation(event.slot).id.to_string(), " ",
      kEventNames[static_cast<size_t>(event.kind)], " ", event.a);
}

std::string describe(const Frame& frame) {
  static constexpr const char* kKinds[] = {"?",   "HELLO",  "CALL",    "REPLY", "POST",
                                           "ACK", "CANCEL", "GOODBYE", "ABORT"};
  const FrameHeader& h = frame.header;
  return absl::StrCat(h.source.to_string(), " -> ", h.destination.to_string(), " ",
                      kKinds[static_cast<size_t>(h.kind)], " seq ", h.sequence, " ack ",
                      h.acknowledged, " call ", h.call, " topic ", h.function);
}

}  // namespace weft::sim
