#include "weft/dist_optim/steps/step_caller_core.h"

#include <algorithm>
#include <cmath>
#include <utility>

#include "absl/strings/str_join.h"
#include "weft/base/faults/breakage.h"
#include "weft/base/status.h"

namespace weft::dist_optim_internal {

StepCallerCore::StepCallerCore(Options options)
    : options_(std::move(options)),
      joined_(options_.sequence.empty()),
      durable_(options_.owners.size()) {}

absl::Status StepCallerCore::begin(double max_norm, CallerActions& out) {
  if (stepping()) return absl::FailedPreconditionError("a step of this optimizer is under way");
  max_norm_ = max_norm;
  result_ = {};
  norm2_ = 0;
  committed_ = told_ = false;
  late_.reset();
  if (joined_) {
    prepare(out);
    return absl::OkStatus();
  }
  phase_ = Phase::kJoining;
  open_ = options_.owners.size();
  standings_.assign(options_.owners.size(), std::nullopt);
  for (size_t i = 0; i < options_.owners.size(); ++i) out.push_back(step::Join{i});
  return absl::OkStatus();
}

// ---- the step sequence

void StepCallerCore::on_joined(size_t owner, absl::StatusOr<SequenceStanding> answer,
                               CallerActions& out) {
  standings_[owner] = std::move(answer);
  if (one_less()) joined(out);
}

void StepCallerCore::joined(CallerActions& out) {
  std::optional<size_t> restored;
  uint64_t furthest = number_;
  for (size_t i = 0; i < standings_.size(); ++i) {
    const absl::StatusOr<SequenceStanding>& standing = *standings_[i];
    if (!standing.ok()) {
      result_.outcome = Outcome::kNotApplied;
      result_.status = standing.status();
      end(out);
      return;
    }
    furthest = std::max(furthest, standing->applied);
    const bool behind = restored && standing->applied >= (*standings_[*restored])->applied;
    if (standing->restored && !behind) restored = i;
  }
  if (restored.has_value()) {
    result_.outcome = Outcome::kDataLoss;
    result_.durable = (*standings_[*restored])->applied;
    result_.status = absl::DataLossError(absl::StrCat(
        options_.owners[*restored].name, " came back after step ", result_.durable, " of ",
        options_.sequence, ", of which ", furthest, " are known: resume there"));
    end(out);
    return;
  }
  joined_ = true;
  number_ = furthest;
  prepare(out);
}

absl::Status StepCallerCore::resumed(uint64_t number) {
  if (stepping()) return absl::FailedPreconditionError("a step of this optimizer is under way");
  number_ = number;
  joined_ = true;
  durable_.assign(durable_.size(), {});
  return absl::OkStatus();
}

// ---- all or none

// Prepares all owners. The only remote owner, or a single owner, is left out and gets FINISH.
void StepCallerCore::prepare(CallerActions& out) {
  result_.number = ++number_;
  const std::vector<Owner>& owners = options_.owners;
  last_.reset();
  places_.clear();
  if (options_.hogwild) {
    phase_ = Phase::kAlone;
    open_ = owners.size();
    alone_.assign(owners.size(), std::nullopt);
    for (size_t i = 0; i < owners.size(); ++i) {
      places_.push_back(i);
      out.push_back(step::ApplyAlone{i});
    }
    return;
  }
  const auto remote = [](const Owner& owner) { return !owner.local; };
  if (std::count_if(owners.begin(), owners.end(), remote) == 1) {
    last_ = std::find_if(owners.begin(), owners.end(), remote) - owners.begin();
  }
  if (owners.size() == 1) last_ = 0;
  phase_ = Phase::kPreparing;
  norms_.assign(owners.size(), std::nullopt);
  for (size_t i = 0; i < owners.size(); ++i) {
    if (last_ == i) continue;
    places_.push_back(i);
    out.push_back(step::Prepare{i});
  }
  open_ = places_.size();
  if (open_ == 0) prepared(out);
}

void StepCallerCore::on_prepared(size_t owner, absl::StatusOr<double> norm2, CallerActions& out) {
  norms_[owner] = std::move(norm2);
  if (one_less()) prepared(out);
}

void StepCallerCore::prepared(CallerActions& out) {
  for (const size_t i : places_) {
    const absl::StatusOr<double>& norm2 = *norms_[i];
    if (!norm2.ok() && WEFT_BREAK(refusal_does_not_count)) continue;
    if (!norm2.ok()) {
      // In a step sequence, DataLoss means that the owner was set back to a checkpoint. So the next
      // step asks all owners again how far they are.
      const bool lost = absl::IsDataLoss(norm2.status()) && !options_.sequence.empty();
      if (lost) joined_ = false;
      abort(lost ? Outcome::kDataLoss : Outcome::kNotApplied, of_owner(i, norm2.status()), out);
      return;
    }
    const std::string whose = absl::StrCat("the gradients on ", options_.owners[i].name);
    absl::Status clippable = check_norm(*norm2, max_norm_, whose);
    norm2_ += *norm2;
    clippable.Update(check_norm(norm2_, max_norm_, "the gradients of all owners"));
    if (!clippable.ok()) {
      abort(Outcome::kNotApplied, std::move(clippable), out);
      return;
    }
  }
  if (last_.has_value()) {
    phase_ = Phase::kFinishing;
    out.push_back(step::Finish{*last_, norm2_});
    return;
  }
  result_.clip = clip_factor(norm2_, max_norm_);
  result_.gradient_norm = std::sqrt(norm2_);
  commit(out);
}

void StepCallerCore::on_finished(size_t owner, const absl::StatusOr<StepSummary>& answer,
                                 CallerActions& out) {
  if (answer.ok()) {
    note_durable(owner, answer->durable);
    result_.clip = answer->clip;
    result_.gradient_norm = std::sqrt(answer->norm2);
    commit(out);
    return;
  }
  const absl::Status& failure = answer.status();
  if (absl::IsDataLoss(failure)) {
    joined_ = options_.sequence.empty();
    abort(Outcome::kDataLoss, of_owner(owner, failure), out);
    return;
  }
  if (ran_of(failure) == Ran::kNo || WEFT_BREAK(lost_answer_not_asked_for)) {
    abort(Outcome::kNotApplied, of_owner(owner, failure), out);
    return;
  }
  // The answer is lost, or the owner refused. SETTLE tells which. After SETTLE, the step cannot be
  // applied there any more if it was not applied before.
  failure_ = failure;
  phase_ = Phase::kSettling;
  limit_wait({owner}, out);
  out.push_back(step::Settle{owner});
}

void StepCallerCore::on_settled(size_t owner, const absl::StatusOr<StepDecision>& answer,
                                CallerActions& out) {
  if (answer.ok() && answer->outcome == StepOutcome::kApplied) {
    result_.clip = answer->clip;
    result_.gradient_norm = std::sqrt(norm2_ + answer->norm2);
    commit(out);
    return;
  }
  // The owner has aborted the step, or it is dead and does not count.
  if (answer.ok() || absl::IsUnavailable(answer.status()) ||
      WEFT_BREAK(unknown_counts_as_not_applied)) {
    abort(Outcome::kNotApplied, of_owner(owner, failure_), out);
  } else {
    abort(Outcome::kDataLoss, unknown_at({owner}, failure_.ToString()), out);
  }
}

void StepCallerCore::commit(CallerActions& out) {
  phase_ = Phase::kCommitting;
  committed_ = true;
  open_ = places_.size();
  limit_wait(places_, out);
  for (const size_t i : places_) out.push_back(step::Commit{i, result_.clip});
  if (open_ == 0) end(out);
}

void StepCallerCore::on_committed(size_t owner, const absl::StatusOr<StepDurable>& answer,
                                  CallerActions& out) {
  if (answer.ok()) {
    note_durable(owner, *answer);
  } else {
    result_.outcome = Outcome::kDataLoss;
    result_.status = unknown_at({owner}, answer.status().ToString());
  }
  if (one_less()) end(out);
}

void StepCallerCore::abort(Outcome outcome, absl::Status why, CallerActions& out) {
  result_.outcome = outcome;
  result_.status = std::move(why);
  phase_ = Phase::kAborting;
  open_ = places_.size();
  // A lost ABORT harms nobody: the owner drops the step at the next PREPARE.
  for (const size_t i : places_) out.push_back(step::Abort{i});
  if (open_ == 0) end(out);
}

void StepCallerCore::on_aborted(size_t, CallerActions& out) {
  if (one_less()) end(out);
}

// ---- hogwild

void StepCallerCore::on_applied_alone(size_t owner, absl::StatusOr<StepDurable> answer,
                                      CallerActions& out) {
  if (answer.ok()) note_durable(owner, *answer);
  alone_[owner] = std::move(answer);
  if (one_less()) applied_alone(out);
}

void StepCallerCore::applied_alone(CallerActions& out) {
  std::string report;
  bool any_failed = false, any_applied = false;
  for (const size_t i : places_) {
    const absl::Status& status = alone_[i]->status();
    const bool maybe = !status.ok() && (ran_of(status) == Ran::kMaybe || absl::IsDataLoss(status));
    any_failed |= !status.ok();
    any_applied |= status.ok() || maybe;
    absl::StrAppend(&report, i == 0 ? "" : "; ", options_.owners[i].name, ": ",
                    status.ok() ? "applied"
                    : maybe     ? "maybe, "
                                : "not applied, ",
                    status.ok() ? "" : status.ToString());
  }
  if (any_failed) {
    result_.outcome = any_applied ? Outcome::kDataLoss : Outcome::kNotApplied;
    result_.status = any_applied ? absl::DataLossError(report) : absl::AbortedError(report);
  }
  end(out);
}

// ---- the result

void StepCallerCore::limit_wait(std::vector<size_t> asked, CallerActions& out) {
  if (late_.has_value()) return;
  late_ = std::move(asked);
  out.push_back(step::LimitWait{});
}

void StepCallerCore::on_late(const std::string& why, CallerActions& out) {
  if (!stepping() || !late_.has_value()) return;
  StepResult result;
  result.outcome = Outcome::kDataLoss;
  result.number = number_;
  result.status = unknown_at(*late_, why);
  tell(std::move(result), out);
}

absl::Status StepCallerCore::unknown_at(const std::vector<size_t>& asked,
                                        const std::string& why) const {
  const auto name = [this](std::string* out, size_t place) {
    out->append(options_.owners[place].name);
  };
  return absl::DataLossError(absl::StrCat(step().to_string(), " is not known to be applied by ",
                                          absl::StrJoin(asked, ", ", name), ": ", why));
}

void StepCallerCore::note_durable(size_t owner, const StepDurable& durable) {
  durable_[owner] = durable;
  if (durable.code == 0) return;
  result_.checkpoint = of_owner(owner, durable.status());
}

// An owner's answers do not contain its name.
absl::Status StepCallerCore::of_owner(size_t owner, const absl::Status& status) const {
  return prepend(absl::StrCat(options_.owners[owner].name, ": "), status);
}

void StepCallerCore::tell(StepResult result, CallerActions& out) {
  if (told_) return;
  told_ = true;
  out.push_back(step::Tell{std::move(result)});
}

void StepCallerCore::end(CallerActions& out) {
  phase_ = Phase::kIdle;
  if (committed_ || result_.outcome == Outcome::kApplied) ++finished_;
  if (joined_) {
    const auto [least, most] = std::minmax_element(
        durable_.begin(), durable_.end(),
        [](const StepDurable& a, const StepDurable& b) { return a.number < b.number; });
    result_.durable = (WEFT_BREAK(durable_of_the_furthest) ? most : least)->number;
    bool any = false;
    for (const StepDurable& one : durable_) {
      if (!one.keeps) continue;
      result_.kept = any ? std::min(result_.kept, one.number) : one.number;
      any = true;
    }
  }
  tell(result_, out);
  out.push_back(step::End{});
}

}  // namespace weft::dist_optim_internal
