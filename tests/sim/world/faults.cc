// The faults of a run, their times, and how they are repaired.
#include <algorithm>
#include <utility>

#include "weft/tests/sim/world/world.h"

namespace weft::sim {
namespace {

// cut, duplicate, overtake, partition, one-way, flapping, crash, restart, pause, node, store,
// silent store, slow worker
constexpr uint32_t kFaultWeights[][kFaults] = {
    {60, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0},     // lost connections only: no worker may die
    {20, 0, 0, 0, 0, 0, 30, 0, 5, 0, 2, 0, 0},    // crashes
    {15, 0, 0, 10, 10, 8, 5, 0, 20, 0, 4, 0, 0},  // silence
    {20, 0, 0, 6, 6, 5, 15, 0, 10, 0, 3, 0, 0},   // crashes and silence together
    {10, 0, 0, 8, 6, 4, 20, 0, 10, 0, 8, 20, 0},  // and a store that fails
    {10, 0, 0, 0, 0, 0, 0, 0, 0, 0, 2, 0, 40},    // a busy machine: no worker may die
};

// For profiles in which callers and owners of steps die, or in which workers join.
constexpr uint32_t kDeadlyWeights[][kFaults] = {
    {5, 0, 0, 0, 0, 0, 30, 0, 5, 0, 5, 0},    // crashes
    {10, 0, 0, 8, 8, 4, 20, 0, 15, 0, 5, 0},  // and silence: some workers declared dead still run
    {5, 0, 0, 5, 5, 2, 20, 0, 10, 0, 8, 10},  // and a store that fails
};

}  // namespace

void World::plan_faults(Nanoseconds span) {
  const bool deadly = profile != Profile::kEverything;
  if (dice.chance(deadly ? 5 : 15)) return;  // a run without faults
  const auto& faults = deadly ? kDeadlyWeights[dice.below(std::size(kDeadlyWeights))]
                              : kFaultWeights[dice.below(std::size(kFaultWeights))];
  fault_weights_.assign(std::begin(faults), std::end(faults));
  for (const uint32_t weight : fault_weights_) fault_weight_sum_ += weight;
  for (size_t i = 0, count = 1 + dice.below(5); i < count; ++i) {
    schedule.in(Nanoseconds(static_cast<int64_t>(dice.below(span.count()))), EventKind::kFault,
                kNobody);
  }
}

// Workers join in slots that were never used, mostly several at the same time.
void World::plan_joiners(Nanoseconds span) {
  const Nanoseconds together(static_cast<int64_t>(dice.below(span.count())));
  for (uint32_t place = static_cast<uint32_t>(incarnations_.size()); place < places_; ++place) {
    const Nanoseconds alone(static_cast<int64_t>(dice.below(span.count())));
    mend_in(dice.chance(70) ? together + dice.micros(0, 30000) : alone,
            {.fault = Fault::kRestart, .place = place});
  }
}

void World::strike() {
  if (winding_down) return;
  uint64_t pick = dice.below(fault_weight_sum_);
  size_t fault = 0;
  while (pick >= fault_weights_[fault]) pick -= fault_weights_[fault++];
  std::vector<Slot> up;
  for (Slot slot = 0; slot < incarnations_.size(); ++slot) {
    if (incarnations_[slot].worker != nullptr) up.push_back(slot);
  }
  switch (static_cast<Fault>(fault)) {
    case Fault::kCut: {
      const std::vector<int> open = network.open_connections();
      if (open.empty()) return;
      report.inject(Fault::kCut);
      return network.cut(open[dice.below(open.size())], dice.chance(60), true);
    }
    case Fault::kCrash:
      if (up.size() > 2) crash(up[dice.below(up.size())]);
      return;
    case Fault::kPause:
      return pause(up[dice.below(up.size())]);
    case Fault::kSlow:
      return slow_down(up[dice.below(up.size())]);
    case Fault::kPartition:
    case Fault::kOneWay:
    case Fault::kFlapping:
      return silence_some(static_cast<Fault>(fault));
    case Fault::kSlowStore:
      report.inject(Fault::kSlowStore);
      slow_store = true;
      slow_store_fault = mend_in(dice.millis(100, 3000), {.fault = Fault::kSlowStore});
      return;
    case Fault::kSilentStore:
      report.inject(Fault::kSilentStore);
      silent_store = true;
      silent_store_fault = mend_in(dice.millis(100, 4000), {.fault = Fault::kSilentStore});
      return;
    default:
      return;
  }
}

size_t World::mend_in(Nanoseconds delay, Mending what) {
  mendings_.push_back(std::move(what));
  schedule.in(delay, EventKind::kMend, kNobody, mendings_.size() - 1);
  last_mend_ = std::max(last_mend_, schedule.now() + delay);
  return mendings_.size() - 1;
}

void World::felt(size_t fault) {
  if (!std::exchange(mendings_[fault].felt, true)) report.effect(mendings_[fault].fault);
}

bool World::may_crash() const {
  if (winding_down || fault_weights_.empty()) return false;
  const auto up =
      std::count_if(incarnations_.begin(), incarnations_.end(),
                    [](const Incarnation& incarnation) { return incarnation.worker != nullptr; });
  return up > 2 && fault_weights_[static_cast<size_t>(Fault::kCrash)] > 0;
}

void World::doom(Slot victim, unsigned percent) {
  if (profile == Profile::kSteps) percent *= 8;
  if (!may_crash() || !dice.chance(percent)) return;
  mend_in(dice.micros(0, 400), {.fault = Fault::kCrash, .slot = victim});
}

void World::doom_in_inquiry(Slot victim) {
  if (profile == Profile::kSteps) doom(victim, 2);
}

void World::crash(Slot victim) {
  report.inject(Fault::kCrash);
  Incarnation& incarnation = incarnations_[victim];
  const Worker& worker = *incarnation.worker;
  const bool matters = worker.sessions.left().calls > 0 || worker.calls.running() > 0 ||
                       !worker.references.leftovers().empty() || worker.passes.core().size() > 0;
  if (matters) report.effect(Fault::kCrash);
  leave(victim);
  if (dice.chance(60) && newest(incarnation.id.index) == incarnation.id &&
      incarnation.id.incarnation < 3) {
    mend_in(dice.chance(50) ? dice.micros(200, 5000) : dice.millis(5, 300),
            {.fault = Fault::kRestart, .place = incarnation.id.index});
  }
}

void World::leave(Slot slot) {
  Incarnation& incarnation = incarnations_[slot];
  any_ended_ = true;
  network.cut_all(slot, dice.chance(50));
  incarnation.worker.reset();
  incarnation.deferred.clear();
  incarnation.paused = incarnation.slow = false;
  membership->disturb();
}

void World::pause(Slot victim) {
  if (incarnations_[victim].paused) return;
  report.inject(Fault::kPause);
  incarnations_[victim].paused = true;
  incarnations_[victim].paused_at = schedule.now();
  membership->disturb();
  const Nanoseconds length = dice.chance(50) ? dice.millis(1, 400) : dice.millis(400, 4000);
  mend_in(length, {.fault = Fault::kPause, .slot = victim});
}

// The worker gets a processor only for a moment now and then.
void World::slow_down(Slot victim) {
  if (incarnations_[victim].paused) return;
  report.inject(Fault::kSlow);
  take_turns(mend_in(
      Nanoseconds(0),
      {.fault = Fault::kSlow, .slot = victim, .times = static_cast<int>(dice.between(1, 4))}));
}

void World::take_turns(size_t number) {
  Incarnation& incarnation = incarnations_[mendings_[number].slot];
  Nanoseconds length = dice.micros(100, 5000);
  if (incarnation.slow) {
    if (!incarnation.deferred.empty()) felt(number);
    resume(mendings_[number].slot);
    if (mendings_[number].times-- <= 0) return;
  } else {
    if (incarnation.paused || incarnation.worker == nullptr) return;
    incarnation.paused = incarnation.slow = true;
    incarnation.paused_at = schedule.now();
    length = dice.millis(100, 4000);
    membership->disturb();
  }
  last_mend_ = std::max(last_mend_, schedule.now() + length);
  schedule.in(length, EventKind::kMend, kNobody, number);
}

void World::resume(Slot slot) {
  Incarnation& incarnation = incarnations_[slot];
  if (!std::exchange(incarnation.paused, false)) return;
  const bool slow = std::exchange(incarnation.slow, false);
  if (slow) {
    incarnation.waited += schedule.now() - incarnation.paused_at;
  } else {
    absences.push_back(
        {incarnation.id.index, incarnation.id.index, incarnation.paused_at, schedule.now()});
  }
  if (!incarnation.deferred.empty() && !slow) report.effect(Fault::kPause);
  for (const Event& event : std::exchange(incarnation.deferred, {})) {
    // Each event keeps its old fields. A timer uses them to see what it was armed for.
    schedule.at(schedule.now(), event.kind, event.slot, event.a, event.b);
  }
  if (incarnation.worker != nullptr) membership->on_resume(*incarnation.worker);
}

void World::silence_some(Fault fault) {
  Mending mending{.fault = fault};
  if (fault == Fault::kPartition) {
    // Two sides. Often one side is a single worker.
    std::vector<bool> side(places_);
    if (dice.chance(60)) {
      side[dice.below(places_)] = true;
    } else {
      for (uint32_t i = 0; i < places_; ++i) side[i] = dice.chance(50);
    }
    for (uint32_t a = 0; a < places_; ++a) {
      for (uint32_t b = 0; b < places_; ++b) {
        if (side[a] != side[b]) mending.silences.emplace_back(a, b);
      }
    }
  } else {
    const uint32_t a = static_cast<uint32_t>(dice.below(places_));
    const uint32_t b = (a + 1 + static_cast<uint32_t>(dice.below(places_ - 1))) % places_;
    mending.silences.emplace_back(a, b);
    if (fault == Fault::kFlapping) {
      mending.silences.emplace_back(b, a);
      mending.times = static_cast<int>(dice.between(2, 6));
    }
  }
  if (mending.silences.empty()) return;  // all workers are on one side
  report.inject(fault);
  membership->disturb();
  const Nanoseconds length = fault == Fault::kFlapping ? dice.millis(20, 300)
                             : dice.chance(50)         ? dice.millis(1, 500)
                                                       : dice.millis(500, 4000);
  const size_t number = mend_in(length, mending);
  for (const auto& [from, to] : mending.silences) network.silence(from, to, number);
}

void World::mend(size_t number) {
  const Mending what = mendings_[number];
  if (winding_down && what.fault != Fault::kRestart) return;
  switch (what.fault) {
    case Fault::kPause:
      return resume(what.slot);
    case Fault::kSlow:
      return take_turns(number);
    case Fault::kCrash:
      if (incarnations_[what.slot].worker != nullptr && may_crash()) crash(what.slot);
      return;
    case Fault::kSlowStore:
      slow_store = false;
      return;
    case Fault::kSilentStore:
      silent_store = false;
      return;
    case Fault::kRestart: {
      if (winding_down) return;
      const WorkerId last = newest(what.place);
      if (worker(last) != nullptr) return;
      if (last.incarnation > 0) {
        report.inject(Fault::kRestart);
        report.effect(Fault::kRestart);
      }
      membership->on_join(start(what.place, last.incarnation + 1));
      return;
    }
    default:
      break;
  }
  const bool silent = network.silent(what.silences[0].first, what.silences[0].second);
  for (const auto& [from, to] : what.silences) {
    if (silent) {
      network.restore(from, to);
    } else {
      network.silence(from, to, number);
    }
  }
  if (!silent) membership->disturb();
  if (mendings_[number].times-- <= 0) return;
  schedule.in(dice.millis(20, 300), EventKind::kMend, kNobody, number);
}

void World::mend_all() {
  Network::Manner manner = network.manner();
  manner.duplicates = manner.overtaking = 0;
  network.set_manner(manner);
  slow_store = silent_store = false;
  network.restore_all();
  for (Slot slot = 0; slot < incarnations_.size(); ++slot) resume(slot);
  membership->disturb();
}

}  // namespace weft::sim
