#include "weft/tests/sim/membership/membership_book.h"

#include <algorithm>

#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "weft/tests/sim/world/world.h"

namespace weft::sim {

void MembershipBook::append(const DeathRecord& death_record, Nanoseconds patience,
                            Nanoseconds interval, bool lease_valid) {
  const std::string what =
      absl::StrCat(death_record.by.to_string(), " on ", death_record.dead.to_string(), ", which ",
                   death_record.reason);
  if (dead_.contains(death_record.by)) {
    world_.violate("one order", "a death record by a worker that was dead itself: " + what);
  }
  if (!dead_.insert(death_record.dead).second) {
    world_.violate("one order", "a second death record: " + what);
  }
  list_.push_back(death_record);
  world_.note_end();
  world_.report.count(Effect::kDeathRecords);
  if (world_.worker(death_record.dead) == nullptr) return;  // it is really dead
  world_.report.count(Effect::kFalseDeathRecords);
  if (absl::StrContains(death_record.reason, "was restarted")) {
    if (world_.newest(death_record.dead.index) == death_record.dead) {
      world_.violate("no false death", "there is no later incarnation: " + what);
    }
    return;
  }
  // How long the writer could not hear the dead worker, in the time that counts plus a margin at
  // both ends.
  const Nanoseconds window = patience + 6 * interval;
  const Nanoseconds silence =
      cut_off(death_record.by, death_record.dead, world_.schedule.now() - window);
  if (silence < patience - 2 * interval) {
    world_.violate("no false death", absl::StrCat("nothing explains the death record of ", what));
  }
  if (lease_valid) {
    world_.violate("S6", absl::StrCat("it relies on the writer still: ", what));
  }
}

Nanoseconds MembershipBook::cut_off(WorkerId by, WorkerId about, TimePoint since) const {
  const uint32_t a = by.index, b = about.index;
  const TimePoint now = world_.schedule.now();
  std::vector<std::pair<TimePoint, TimePoint>> spans;
  const auto add = [&](TimePoint begin, TimePoint end) {
    if (end > since) spans.emplace_back(std::max(begin, since), end);
  };
  for (const Absence& absence : world_.absences) {
    const bool between = (absence.from == a && absence.to == b) ||
                         (absence.from == b && absence.to == a) ||
                         (absence.from == b && absence.to == b);
    if (between) add(absence.begin, absence.end);
  }
  for (const auto& [from, to] : {std::pair(a, b), std::pair(b, a)}) {
    const TimePoint begun = world_.network.silent_since(from, to);
    if (begun != kNever) add(begun, now);
  }
  for (const Incarnation& incarnation : world_.incarnations()) {
    if (incarnation.id == about && incarnation.paused && !incarnation.slow)
      add(incarnation.paused_at, now);
  }
  std::sort(spans.begin(), spans.end());
  Nanoseconds all{0};
  TimePoint until = since;
  for (const auto& [begin, end] : spans) {
    if (end > until) all += end - std::max(begin, until);
    until = std::max(until, end);
  }
  return all;
}

void MembershipBook::read(const std::vector<DeathRecord>& death_records) {
  for (const DeathRecord& death_record : death_records)
    read_.try_emplace(death_record.dead, world_.schedule.now());
}

// 3 s are enough for a question, a refusal and another question, each with its time to the store.
bool MembershipBook::must_be_known(WorkerId dead) const {
  const auto found = read_.find(dead);
  return found != read_.end() && found->second + std::chrono::seconds(3) <= world_.schedule.now();
}

void MembershipBook::part(WorkerId at, WorkerId gone) {
  if (read_.contains(at) || read_.contains(gone)) return;
  if (world_.newest(gone.index) != gone) {  // its death record is under way; its writes may be lost
    severed_.insert(gone);
    return;
  }
  world_.note_end();
  world_.report.count(Effect::kSevered);
  severed_.insert(at);
  severed_.insert(gone);
}

}  // namespace weft::sim
