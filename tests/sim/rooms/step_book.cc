#include "weft/tests/sim/rooms/step_book.h"

#include <algorithm>

#include "absl/strings/str_cat.h"
#include "weft/tests/sim/world/world.h"

namespace weft::sim {

using dist_optim_internal::StepId;

bool StepBook::holds(WorkerId owner, const std::string& sequence, uint64_t number) {
  const std::vector<uint64_t>& steps = parameters_[owner][sequence];
  return std::find(steps.begin(), steps.end(), number) != steps.end();
}

void StepBook::apply(WorkerId owner, const std::string& sequence, const StepId& step, double clip) {
  std::vector<uint64_t>& steps = parameters_[owner][sequence];
  const std::string what =
      absl::StrCat(owner.to_string(), " applies ", step.to_string(), " of ", sequence);
  if (world_.trace.on()) world_.trace.add("  " + what);
  if (!steps.empty() && steps.back() >= step.number) {
    world_.violate("applied once", what + " twice, or late");
  }
  steps.push_back(step.number);
  world_.report.count(Effect::kStepsApplied);
  Sequence& known = sequences_[sequence];
  if (known.refused.contains({step.optimizer, step.number}) && !world_.ended(owner)) {
    world_.violate("told truly", what + ", and the caller was told that it is not applied");
  }
  const double clip_before = known.clips.try_emplace(step.number, clip).first->second;
  if (clip_before != clip) world_.violate("all owners alike", what + " with another clip factor");
}

void StepBook::restore(WorkerId owner, const StepCheckpoint& from, bool restarted) {
  if (!restarted) give_up(owner, from.parameters);
  parameters_[owner] = from.parameters;
  if (world_.trace.on()) {
    world_.trace.add(absl::StrCat("  ", owner.to_string(), " is set back",
                                  restarted ? " by a restart" : " by its program"));
  }
  world_.report.count(Effect::kOwnersRestored);
  for (const auto& [caller, places] : world_.step_owners) {
    if (std::find(places.begin(), places.end(), owner.index) == places.end()) continue;
    const std::string sequence = world_.sequence_of(caller);
    const auto found = from.sequences.find(sequence);
    const uint64_t there = found == from.sequences.end() ? 0 : found->second;
    if (!restarted) sequences_[sequence].durable = std::min(sequences_[sequence].durable, there);
    if (there < sequences_[sequence].durable) {
      world_.violate("durable", absl::StrCat(owner.to_string(), " comes back at step ", there,
                                             " of ", sequence, ", of which ",
                                             sequences_[sequence].durable, " were durable"));
    }
  }
}

// When the program of one step sequence goes back, its owners lose later steps of other sequences
// too.
void StepBook::give_up(WorkerId owner, const Parameters& kept) {
  for (const auto& [sequence, steps] : parameters_[owner]) {
    const auto found = kept.find(sequence);
    const uint64_t last = found == kept.end() || found->second.empty() ? 0 : found->second.back();
    for (const uint64_t number : steps) {
      if (number > last) given_up_.insert({owner, sequence, number});
    }
  }
}

void StepBook::written(uint32_t place, StepCheckpoint checkpoint) {
  std::vector<StepCheckpoint>& disk = disks_[place];
  disk.push_back(std::move(checkpoint));
  if (disk.size() > 2) disk.erase(disk.begin());
}

void StepBook::resume(const std::string& sequence, uint64_t number) {
  Sequence& known = sequences_[sequence];
  known.clips.erase(known.clips.upper_bound(number), known.clips.end());
  std::erase_if(known.refused, [&](const auto& step) { return step.second > number; });
  std::erase_if(given_up_, [&](const auto& step) { return std::get<1>(step) == sequence; });
  known.durable = std::min(known.durable, number);
  world_.report.count(Effect::kResumes);
}

void StepBook::tell(WorkerId caller, const std::string& sequence,
                    const std::vector<WorkerId>& owners, const StepId& step,
                    const StepResult& result) {
  const std::string what = absl::StrCat(step.to_string(), " of ", sequence);
  if (world_.trace.on()) {
    world_.trace.add(absl::StrCat("  ", caller.to_string(), " is told of ", what, ": ",
                                  static_cast<int>(result.outcome), " ", result.status.ToString()));
  }
  world_.report.end(Operation::kStep,
                    result.outcome == StepResult::Outcome::kApplied      ? Outcome::kValue
                    : result.outcome == StepResult::Outcome::kNotApplied ? Outcome::kNotRun
                                                                         : Outcome::kMaybeRun);
  if (world_.ended(caller)) return;  // it cannot know
  Sequence& known = sequences_[sequence];
  if (result.outcome == StepResult::Outcome::kNotApplied && result.number != 0) {
    known.refused.insert({step.optimizer, step.number});
  }
  for (const WorkerId owner : owners) {
    if (world_.ended(owner)) continue;
    // It was applied, and then another program went back while the answer was under way.
    if (given_up_.contains({owner, sequence, step.number})) return;
    const bool here = holds(owner, sequence, step.number);
    if (result.outcome == StepResult::Outcome::kApplied && !here) {
      world_.violate("told truly", what + " is told as applied; not by " + owner.to_string());
    }
    if (result.outcome == StepResult::Outcome::kNotApplied && result.number != 0 && here) {
      world_.violate("told truly", what + " is told as not applied; it is by " + owner.to_string());
    }
    if (result.outcome != StepResult::Outcome::kApplied) continue;
    const std::vector<StepCheckpoint>& disk = disks_[owner.index];
    const uint64_t written = disk.empty() || !disk.back().sequences.contains(sequence)
                                 ? 0
                                 : disk.back().sequences.at(sequence);
    if (result.durable > written) {
      world_.violate("durable", absl::StrCat(result.durable, " steps of ", sequence,
                                             " are told as durable; at ", owner.to_string(), " ",
                                             written, " are"));
    }
  }
  // For a step sequence that went back, `durable` says where that owner is.
  if (result.outcome == StepResult::Outcome::kApplied) {
    known.durable = std::max(known.durable, result.durable);
  }
}

void StepBook::check_same(const std::string& sequence, const std::vector<WorkerId>& owners) {
  for (const WorkerId owner : owners) {
    const std::vector<uint64_t>& first = parameters_[owners.front()][sequence];
    if (parameters_[owner][sequence] == first) continue;
    world_.violate("all owners alike",
                   absl::StrCat(owners.front().to_string(), " and ", owner.to_string(),
                                " have not applied the same steps of ", sequence));
  }
}

}  // namespace weft::sim
