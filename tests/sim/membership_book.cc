#include "weft/tests/sim/membership_book.h"

#include <algorithm>

#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "weft/tests/sim/world.h"

namespace weft::sim {

void MembershipBook::append(const Verdict& verdict, Nanoseconds patience, Nanoseconds interval,
                            bool trusted) {
  const std::string what = absl::StrCat(verdict.by.to_string(), " on ", verdict.dead.to_string(),
                                        ", which ", verdict.reason);
  if (dead_.contains(verdict.by)) {
    world_.violate("one order", "a verdict by a worker that was dead itself: " + what);
  }
  if (!dead_.insert(verdict.dead).second) {
    world_.violate("one order", "a second verdict: " + what);
  }
  list_.push_back(verdict);
  world_.note_end();
  world_.report.count(Effect::kVerdicts);
  if (world_.worker(verdict.dead) == nullptr) return;  // it is dead
  world_.report.count(Effect::kFalseVerdicts);
  if (absl::StrContains(verdict.reason, "was restarted")) {
    if (world_.newest(verdict.dead.index) == verdict.dead) {
      world_.violate("no false death", "there is no later life: " + what);
    }
    return;
  }
  // What the writer did not hear, and a little of what it may have missed at both ends of it.
  const Nanoseconds window = patience + 6 * interval;
  const Nanoseconds silence = cut_off(verdict.by, verdict.dead, world_.schedule.now() - window);
  if (silence < patience - 2 * interval) {
    world_.violate("no false death", absl::StrCat("nothing explains the verdict of ", what));
  }
  if (trusted) {
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
  for (const Life& life : world_.lives()) {
    if (life.id == about && life.paused && !life.slow) add(life.paused_at, now);
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

void MembershipBook::read(const std::vector<Verdict>& verdicts) {
  for (const Verdict& verdict : verdicts) read_.try_emplace(verdict.dead, world_.schedule.now());
}

// A question, a refusal and another question, each with its time to the store.
bool MembershipBook::must_be_known(WorkerId dead) const {
  const auto found = read_.find(dead);
  return found != read_.end() && found->second + std::chrono::seconds(3) <= world_.schedule.now();
}

void MembershipBook::part(WorkerId at, WorkerId gone) {
  if (read_.contains(at) || read_.contains(gone)) return;
  if (world_.newest(gone.index) != gone) {  // its verdict is under way, what it wrote may be lost
    severed_.insert(gone);
    return;
  }
  world_.note_end();
  world_.report.count(Effect::kSevered);
  severed_.insert(at);
  severed_.insert(gone);
}

}  // namespace weft::sim
