#include "weft/tests/stack_sim/stack_faults.h"

#include <chrono>
#include <utility>

#include "absl/strings/str_cat.h"

namespace weft::sim {

using std::chrono::milliseconds;
using std::chrono::seconds;

void StackFaults::begin() {
  store_cuts_ = pick(4) == 0;
  if (pick(3) == 0) world_.set_frame_faults(1000, pick(3) == 0 ? 300 : 0, random_());
}

void StackFaults::one() {
  const auto a = static_cast<uint32_t>(pick(world_.size()));
  const auto b = static_cast<uint32_t>((a + 1 + pick(world_.size() - 1)) % world_.size());
  switch (pick(9)) {
    case 0:
      return kill(a);
    case 1:
    case 2:
      return restart(a, b);
    case 3:
    case 4:
      note("sever", absl::StrCat("sever w", a, " w", b));
      return world_.sever(a, b);
    case 5:
      note("cut one way", absl::StrCat("cut w", a, " -> w", b));
      world_.cut(a, b);
      return heal_later(a, b);
    case 6:
      return partition(a, b);
    case 7:
      if (!store_cuts_) return world_.heal(a, b);
      note("store cut", absl::StrCat("cut the store from w", a));
      world_.cut_store(a);
      return mend_stores_later();
    default:
      return world_.heal(a, b);
  }
}

void StackFaults::stop() {
  world_.heal_all();
  world_.mend_stores();
  world_.set_frame_faults(0, 0, 1);
}

void StackFaults::note(const char* kind, const std::string& what) {
  ++counts_[kind];
  hooks_.trace(what);
}

void StackFaults::kill(uint32_t rank) {
  if (living() <= 2) return;
  note("kill", absl::StrCat("kill w", rank));
  hooks_.forget(rank);
  world_.kill(rank);
}

void StackFaults::restart(uint32_t rank, uint32_t other) {
  if (world_.incarnation(rank).in_group() || joining(rank)) return;
  note("restart", absl::StrCat("restart w", rank));
  hooks_.forget(rank);
  world_.restart(rank);
  if (!store_cuts_ || pick(2) > 0) return;
  // It may give up a worker that never met it, and others will mention that worker to it.
  world_.cut_store(rank);
  world_.cut(rank, other);
  world_.cut(other, rank);
  ManualClock& clock = world_.incarnation(rank).clock;
  clock.call_at(clock.now() + seconds(11), [this, rank, other] {
    world_.mend_stores();
    world_.heal(rank, other);
    world_.heal(other, rank);
  });
}

void StackFaults::partition(uint32_t a, uint32_t b) {
  note("partition", absl::StrCat("cut w", a, " <-> w", b));
  world_.cut(a, b);
  world_.cut(b, a);
  heal_later(b, a);
  heal_later(a, b);
}

// Most partitions are shorter than `suspect_after`.
void StackFaults::heal_later(uint32_t a, uint32_t b) {
  const milliseconds time(pick(5) == 0 ? pick(6000) : pick(1200));
  after(time, [this, a, b] { world_.heal(a, b); });
}

void StackFaults::mend_stores_later() {
  after(milliseconds(pick(8000)), [this] { world_.mend_stores(); });
}

void StackFaults::after(Nanoseconds time, std::function<void()> then) {
  for (const auto& incarnation : world_.incarnations()) {
    if (!incarnation->alive) continue;
    incarnation->clock.call_at(incarnation->clock.now() + time, std::move(then));
    return;
  }
}

bool StackFaults::joining(uint32_t rank) {
  Incarnation& incarnation = world_.incarnation(rank);
  return incarnation.alive && !incarnation.joined && incarnation.membership->standing().ok();
}

uint32_t StackFaults::living() {
  uint32_t living = 0;
  for (uint32_t rank = 0; rank < world_.size(); ++rank)
    living += world_.incarnation(rank).in_group();
  return living;
}

}  // namespace weft::sim
