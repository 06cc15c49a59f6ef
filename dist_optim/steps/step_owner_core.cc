#include "weft/dist_optim/steps/step_owner_core.h"

#include <algorithm>
#include <cmath>
#include <utility>

#include "weft/base/faults/breakage.h"
#include "weft/base/status.h"

namespace weft::dist_optim_internal {

double clip_factor(double norm2, double max_norm) {
  if (max_norm <= 0) return 1.0;
  return std::min(1.0, max_norm / (std::sqrt(norm2) + 1e-6));
}

absl::Status check_norm(double norm2, double max_norm, const std::string& whose) {
  if (max_norm <= 0 || std::isfinite(norm2)) return absl::OkStatus();
  return absl::InvalidArgumentError(
      absl::StrCat(whose, " cannot be clipped: the norm is ", std::sqrt(norm2)));
}

// ---- what is known

StepOutcome StepOwnerCore::outcome_of(const Instance& instance, uint64_t number) {
  if (instance.slot.has_value() && instance.slot->number == number) return StepOutcome::kPrepared;
  if (instance.applied.contains(number)) return StepOutcome::kApplied;
  if (number > instance.decided) return StepOutcome::kUnknown;
  // Erased entries of `applied` are older than all that are left. If none was erased, every number
  // without an entry was aborted.
  const bool complete = instance.applied.size() < kRemembered;
  if (complete || number > instance.applied.begin()->first) return StepOutcome::kAborted;
  return StepOutcome::kForgotten;
}

StepOutcome StepOwnerCore::outcome(const StepId& step) const {
  const auto found = instances_.find(step.optimizer);
  return found == instances_.end() ? StepOutcome::kUnknown : outcome_of(found->second, step.number);
}

absl::StatusOr<AppliedStep> StepOwnerCore::applied(const StepId& step) const {
  const auto instance = instances_.find(step.optimizer);
  if (instance != instances_.end()) {
    const auto applied = instance->second.applied.find(step.number);
    if (applied != instance->second.applied.end()) return applied->second;
  }
  return absl::NotFoundError(absl::StrCat(step.to_string(), " is not known as applied"));
}

std::vector<StepId> StepOwnerCore::undecided() const {
  std::vector<StepId> steps;
  for (const auto& [optimizer, instance] : instances_) {
    if (instance.slot.has_value()) steps.push_back({optimizer, instance.slot->number});
  }
  return steps;
}

StepDecision StepOwnerCore::decision(const Instance& instance, const StepId& step) {
  StepDecision decision;
  decision.outcome = outcome_of(instance, step.number);
  if (decision.outcome == StepOutcome::kApplied) {
    const AppliedStep& applied = instance.applied.at(step.number);
    decision.clip = applied.update.clip;
    decision.norm2 = applied.squared_norm;
  }
  return decision;
}

// ---- the caller

void StepOwnerCore::meet(const OptimizerId& optimizer, std::vector<WorkerId> others) {
  Instance& instance = instances_[optimizer];
  // After the caller's death the list must not change, because open questions refer to it by index.
  if (!instance.caller_dead) instance.others = std::move(others);
}

absl::StatusOr<std::optional<double>> StepOwnerCore::prepare(const StepId& step) {
  WEFT_RETURN_IF_ERROR(damage_);
  const Instance& instance = instances_[step.optimizer];
  if (instance.caller_dead && !WEFT_BREAK(dead_callers_prepare_taken)) {  // nobody would decide it
    return absl::CancelledError(absl::StrCat("the caller of ", step.to_string(), " died"));
  }
  const auto sequence = sequences_.find(instance.sequence);
  const bool restored =
      instance.set_back || (sequence != sequences_.end() && sequence->second.restored);
  if (restored) {
    const uint64_t there = sequence == sequences_.end() ? 0 : sequence->second.applied;
    return absl::DataLossError(
        absl::StrCat("its parameters are those after step ", there, " of ",
                     instance.sequence.empty() ? step.optimizer.to_string() : instance.sequence,
                     ": resume there"));
  }
  switch (outcome_of(instance, step.number)) {
    case StepOutcome::kPrepared:
      return instance.slot->squared_norm;
    case StepOutcome::kApplied:
      return instance.applied.at(step.number).squared_norm;
    case StepOutcome::kUnknown:
      return std::nullopt;
    default:
      return absl::FailedPreconditionError(absl::StrCat(
          step.to_string(), " was given up; the last decided one is ", instance.decided));
  }
}

void StepOwnerCore::on_prepared(const StepId& step, double squared_norm,
                                std::vector<double> learning_rates, OwnerActions& out) {
  Instance& instance = instances_[step.optimizer];
  // The caller decides one step before it begins the next, so the older step was aborted.
  if (instance.slot.has_value()) drop_slot({step.optimizer, instance.slot->number}, out);
  instance.slot.emplace();
  instance.slot->number = step.number;
  instance.slot->squared_norm = squared_norm;
  instance.slot->learning_rates = std::move(learning_rates);
  if (!WEFT_BREAK(earlier_deaths_forgotten)) instance.slot->dead = instance.dead;
  instance.decided = step.number - 1;
}

absl::Status StepOwnerCore::commit(const StepId& step, const StepUpdate& update,
                                   OwnerActions& out) {
  const Instance& instance = instances_[step.optimizer];
  if (outcome_of(instance, step.number) == StepOutcome::kPrepared && instance.slot->fenced) {
    return absl::FailedPreconditionError(
        absl::StrCat(step.to_string(), " is decided by its owners, for its caller died"));
  }
  return commit_decided(step, update, out);
}

absl::Status StepOwnerCore::commit_decided(const StepId& step, const StepUpdate& update,
                                           OwnerActions& out) {
  const Instance& instance = instances_[step.optimizer];
  const StepOutcome outcome = outcome_of(instance, step.number);
  if (outcome == StepOutcome::kApplied) return step == damaged_ ? damage_ : absl::OkStatus();
  WEFT_RETURN_IF_ERROR(damage_);
  if (outcome != StepOutcome::kPrepared) {
    return absl::FailedPreconditionError(absl::StrCat(
        step.to_string(), " is not prepared; the last decided one is ", instance.decided));
  }
  apply(step, update, out);
  return absl::OkStatus();
}

void StepOwnerCore::apply(const StepId& step, const StepUpdate& update, OwnerActions& out) {
  Instance& instance = instances_[step.optimizer];
  instance.applied[step.number] = {instance.slot->squared_norm, update};
  if (instance.applied.size() > kRemembered) instance.applied.erase(instance.applied.begin());
  instance.slot.reset();
  instance.decided = instance.last_applied = step.number;
  if (!instance.sequence.empty()) {
    uint64_t& newest = sequences_[instance.sequence].applied;
    newest = std::max(newest, step.number);
  }
  out.push_back(step::Apply{step, update});
}

void StepOwnerCore::drop_slot(const StepId& step, OwnerActions& out) {
  instances_[step.optimizer].slot.reset();
  out.push_back(step::Drop{step});
}

void StepOwnerCore::on_damage(const StepId& step, absl::Status why) {
  damage_ = std::move(why);
  damaged_ = step;
}

absl::Status StepOwnerCore::abort(const StepId& step, OwnerActions& out) {
  if (WEFT_BREAK(abort_ignored)) return absl::OkStatus();
  Instance& instance = instances_[step.optimizer];
  switch (outcome_of(instance, step.number)) {
    case StepOutcome::kApplied:
      return absl::FailedPreconditionError(absl::StrCat(step.to_string(), " was applied"));
    case StepOutcome::kPrepared:
    case StepOutcome::kUnknown:
      if (instance.slot.has_value()) drop_slot({step.optimizer, instance.slot->number}, out);
      instance.decided = step.number;
      return absl::OkStatus();
    default:
      return absl::OkStatus();
  }
}

absl::StatusOr<StepDecision> StepOwnerCore::settle(const StepId& step, OwnerActions& out) {
  if (WEFT_BREAK(settle_leaves_it_open)) return decision(instances_[step.optimizer], step);
  const absl::Status aborted = abort(step, out);
  if (!aborted.ok() && step == damaged_) return damage_;
  return decision(instances_[step.optimizer], step);
}

// ---- without the caller

void StepOwnerCore::on_worker_dead(WorkerId dead, OwnerActions& out) {
  for (const auto& [optimizer, instance] : instances_) on_worker_dead(optimizer, dead, out);
}

void StepOwnerCore::on_worker_dead(const OptimizerId& optimizer, WorkerId dead, OwnerActions& out) {
  const auto found = instances_.find(optimizer);
  if (found == instances_.end()) return;
  Instance& instance = found->second;
  const bool caller = optimizer.creator == dead;
  instance.caller_dead |= caller;
  const std::vector<WorkerId>& others = instance.others;
  if (std::find(others.begin(), others.end(), dead) != others.end()) instance.dead.insert(dead);
  if (!instance.slot.has_value()) return;
  const StepId step{optimizer, instance.slot->number};
  const bool begin = caller && !instance.slot->asking;
  if (begin && WEFT_BREAK(others_not_asked)) return void(abort(step, out));
  if (begin) instance.slot->fenced = instance.slot->asking = true;
  const bool news = add_dead(step, dead);
  if (begin || (news && instance.slot->asking)) ask_others(step, out);
}

void StepOwnerCore::forget(const OptimizerId& optimizer, OwnerActions& out) {
  const auto found = instances_.find(optimizer);
  if (found == instances_.end()) return;
  if (found->second.slot.has_value()) drop_slot({optimizer, found->second.slot->number}, out);
  instances_.erase(found);
}

StepDecision StepOwnerCore::inquire(const StepId& step, const std::vector<WorkerId>& dead,
                                    OwnerActions& out) {
  Instance& instance = instances_[step.optimizer];
  const StepOutcome outcome = outcome_of(instance, step.number);
  if (outcome == StepOutcome::kUnknown) {
    if (!WEFT_BREAK(inquiry_leaves_it_open)) (void)abort(step, out);
  } else if (outcome == StepOutcome::kPrepared) {
    instance.slot->fenced = !WEFT_BREAK(inquiry_does_not_fence);
    bool grew = false;
    for (const WorkerId worker : dead) {
      grew |= !WEFT_BREAK(deaths_in_inquiry_ignored) && add_dead(step, worker);
    }
    if (grew && instance.slot->asking) ask_others(step, out);
  }
  return decision(instance, step);
}

// Returns whether `dead` is another owner of the step and was not known dead before.
bool StepOwnerCore::add_dead(const StepId& step, WorkerId dead) {
  Instance& instance = instances_[step.optimizer];
  const std::vector<WorkerId>& others = instance.others;
  return std::find(others.begin(), others.end(), dead) != others.end() &&
         instance.slot->dead.insert(dead).second;
}

// Begins a new round: a "not applied" that was answered with fewer known deaths does not count.
void StepOwnerCore::ask_others(const StepId& step, OwnerActions& out) {
  const Instance& instance = instances_[step.optimizer];
  Slot& slot = *instances_[step.optimizer].slot;
  ++slot.round;
  slot.not_applied.assign(instance.others.size(), false);
  const std::vector<WorkerId> dead(slot.dead.begin(), slot.dead.end());
  for (size_t other = 0; other < instance.others.size(); ++other) {
    if (slot.dead.contains(instance.others[other])) continue;
    out.push_back(step::Ask{step, other, dead, slot.round});
  }
  abort_if_nobody_applied(step, out);
}

void StepOwnerCore::on_answer(const StepId& step, size_t other, uint64_t round,
                              const StepDecision& decision, OwnerActions& out) {
  Instance& instance = instances_[step.optimizer];
  if (outcome_of(instance, step.number) != StepOutcome::kPrepared) return;
  Slot& slot = *instance.slot;
  if (other >= instance.others.size()) return;
  const bool dead = slot.dead.contains(instance.others[other]);
  if (dead && !WEFT_BREAK(dead_owners_answer_counts)) return;
  if (decision.outcome == StepOutcome::kApplied && !WEFT_BREAK(applied_elsewhere_ignored)) {
    // Apply at once: an owner that asks this one must hear of it, and no other answer may ever
    // come.
    (void)commit_decided(step, {slot.learning_rates, decision.clip}, out);
  } else if (slot.asking && (round == slot.round || WEFT_BREAK(earlier_round_counts))) {
    slot.not_applied[other] = true;
    abort_if_nobody_applied(step, out);
  }
}

void StepOwnerCore::abort_if_nobody_applied(const StepId& step, OwnerActions& out) {
  const Instance& instance = instances_[step.optimizer];
  for (size_t other = 0; other < instance.others.size(); ++other) {
    if (!instance.slot->not_applied[other] && !instance.slot->dead.contains(instance.others[other]))
      return;
  }
  (void)abort(step, out);
}

// ---- step sequences

void StepOwnerCore::restore(const std::map<std::string, uint64_t>& sequences, OwnerActions& out) {
  for (auto& [optimizer, instance] : instances_) {
    if (instance.slot.has_value()) {
      const uint64_t number = instance.slot->number;
      drop_slot({optimizer, number}, out);
      instance.decided = number;
    }
    instance.set_back = true;
  }
  damage_ = absl::OkStatus();
  damaged_ = {};
  restored_ = true;
  sequences_.clear();
  for (const auto& [sequence, applied] : sequences) sequences_[sequence] = {applied, true};
}

absl::StatusOr<SequenceStanding> StepOwnerCore::join(const OptimizerId& optimizer,
                                                     const std::string& sequence) {
  for (const auto& [other, instance] : instances_) {
    if (other == optimizer || instance.sequence != sequence || !instance.slot.has_value()) continue;
    if (WEFT_BREAK(undecided_sequence_joined)) continue;
    return absl::UnavailableError(
        absl::StrCat(StepId{other, instance.slot->number}.to_string(), " of ", sequence,
                     " is undecided, and its caller may be dead; try again"));
  }
  Instance& instance = instances_[optimizer];
  const Sequence& known = sequences_.try_emplace(sequence, Sequence{0, restored_}).first->second;
  if (WEFT_BREAK(sequence_begins_anew)) return SequenceStanding{};
  if (instance.sequence != sequence) instance.decided = std::max(instance.decided, known.applied);
  instance.sequence = sequence;
  return SequenceStanding{known.applied, known.restored || instance.set_back};
}

absl::Status StepOwnerCore::resume(const OptimizerId& optimizer, uint64_t number,
                                   bool brought_back) {
  Instance& instance = instances_[optimizer];
  if (instance.sequence.empty()) {
    return absl::FailedPreconditionError(absl::StrCat(optimizer.to_string(), " has no sequence"));
  }
  Sequence& sequence = sequences_[instance.sequence];
  if (sequence.applied != number && !brought_back) {
    return absl::FailedPreconditionError(absl::StrCat("this owner is at step ", sequence.applied,
                                                      " of ", instance.sequence, ", not ", number,
                                                      ", and has no checkpoint of that"));
  }
  if (instance.slot.has_value()) {
    return absl::FailedPreconditionError(
        absl::StrCat(StepId{optimizer, instance.slot->number}.to_string(), " is undecided"));
  }
  sequence = {number, false};
  instance.set_back = false;
  if (WEFT_BREAK(later_steps_stay)) return absl::OkStatus();
  instance.decided = instance.last_applied = number;
  instance.applied.erase(instance.applied.upper_bound(number), instance.applied.end());
  return absl::OkStatus();
}

std::string StepOwnerCore::sequence_of(const OptimizerId& optimizer) const {
  const auto found = instances_.find(optimizer);
  return found == instances_.end() ? std::string() : found->second.sequence;
}

std::map<std::string, uint64_t> StepOwnerCore::sequences() const {
  std::map<std::string, uint64_t> newest;
  for (const auto& [name, sequence] : sequences_) newest[name] = sequence.applied;
  return newest;
}

std::map<OptimizerId, uint64_t> StepOwnerCore::newest() const {
  std::map<OptimizerId, uint64_t> newest;
  for (const auto& [optimizer, instance] : instances_) newest[optimizer] = instance.last_applied;
  return newest;
}

}  // namespace weft::dist_optim_internal
