// An owner's half of an optimizer's step: what was prepared, applied or given up here, and what is
// decided with the other owners when the caller died in between.
//
// Numbers of one optimizer grow; a number that was passed over counts as aborted. A caller decides
// one step before it begins the next. Several optimizers may share one core, each with its own
// numbers.
//
// *Without the caller.* An owner left prepared refuses its caller's COMMIT from then on (the step
// is fenced) and asks the others, which do the same before they answer. Any applied: it applies the
// step with that one's clip factor. All others dead, or not: it aborts. A question names the owners
// that the asker knows dead; who answers ignores from then on what these may have said, and an
// asker that learns of a death asks again. So an owner that applied the step, told one other and
// died cannot make the survivors differ.
//
// *Lines.* The steps of optimizers that follow each other under one name count as one line. An
// owner that came back from a checkpoint refuses a line's PREPARE (DataLoss) until somebody resumes
// it.
//
// Thread safety: none; step it under the driver's lock. Deterministic: same events, same actions.
// Errors: FailedPrecondition (a number that was decided otherwise), Cancelled (the caller is dead),
// DataLoss (an earlier commit failed half-way; this owner was set back).
// Protocol: docs/design.md, "Parameters and steps"; docs/durable_steps.md.
#pragma once

#include <cstdint>
#include <map>
#include <optional>
#include <set>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "weft/dist_optim/steps/step_core.h"

namespace weft::dist_optim_internal {

// With what a step was applied, and the squared norm here; for those who do not know.
struct AppliedStep {
  double squared_norm = 0;
  StepUpdate update;
};

class StepOwnerCore {
 public:
  // How many outcomes of an optimizer are kept for questions.
  static constexpr uint64_t kRemembered = 64;

  // ---- the caller
  // The optimizer's other owners, by place; one worker may have several places.
  void meet(const OptimizerId& optimizer, std::vector<WorkerId> others);
  // The squared norm if the step was prepared before; nullopt: check and reserve all that it needs,
  // then on_prepared.
  absl::StatusOr<std::optional<double>> prepare(const StepId& step);
  // `learning_rates`: for a decision without the caller.
  void on_prepared(const StepId& step, double squared_norm, std::vector<double> learning_rates,
                   OwnerActions& out);
  absl::Status commit(const StepId& step, const StepUpdate& update, OwnerActions& out);
  // Not prepared yet: it will be refused.
  absl::Status abort(const StepId& step, OwnerActions& out);
  // For a caller that does not know: what is not applied here never will be.
  // DataLoss: it failed half-way.
  absl::StatusOr<StepDecision> settle(const StepId& step, OwnerActions& out);
  // An Apply failed half-way. This step reports it, and no other is taken.
  void on_damage(const StepId& step, absl::Status why);

  // ---- without the caller
  // Final. Nothing from this worker may be delivered afterwards. Of one optimizer, or of all that
  // have met; also when an Ask cannot be sent, for the worker was dead before.
  void on_worker_dead(const OptimizerId& optimizer, WorkerId dead, OwnerActions& out);
  void on_worker_dead(WorkerId dead, OwnerActions& out);
  // Nobody asks for this optimizer's steps any more. What it left prepared is given up.
  void forget(const OptimizerId& optimizer, OwnerActions& out);
  // Another owner asks, knowing these dead.
  StepDecision inquire(const StepId& step, const std::vector<WorkerId>& dead, OwnerActions& out);
  void on_answer(const StepId& step, size_t other, uint64_t round, const StepDecision& decision,
                 OwnerActions& out);

  // ---- lines
  // The parameters are those of a checkpoint that holds these lines up to these steps, and all
  // others up to 0.
  void restore(const std::map<std::string, uint64_t>& lines, OwnerActions& out);
  // The optimizer goes on with this line. Unavailable: an earlier one's step is undecided.
  absl::StatusOr<LineStanding> join(const OptimizerId& optimizer, const std::string& line);
  // The program goes on behind `number` of the line that the optimizer joined. FailedPrecondition:
  // this owner is elsewhere, unless the program itself `brought` the parameters `back`.
  absl::Status resume(const OptimizerId& optimizer, uint64_t number, bool brought_back);
  std::string line_of(const OptimizerId& optimizer) const;  // empty: none
  // The newest applied step of each line and of each optimizer.
  std::map<std::string, uint64_t> lines() const;
  std::map<OptimizerId, uint64_t> newest() const;

  const absl::Status& damage() const { return damage_; }  // OK: none
  StepOutcome outcome(const StepId& step) const;
  absl::StatusOr<AppliedStep> applied(const StepId& step) const;
  // Steps that are prepared and undecided.
  std::vector<StepId> undecided() const;

 private:
  struct Slot {
    Slot() {}  // clang 14 would not find the implicit one inside this class
    uint64_t number = 0;
    double squared_norm = 0;
    std::vector<double> learning_rates;
    bool fenced = false;      // the caller's COMMIT is refused
    bool asking = false;      // and the others are asked
    uint64_t round = 0;       // of questions; answers to earlier rounds do not count
    std::set<WorkerId> dead;  // nor what these say: this owner, or one that asked, knows them dead
    std::vector<bool> not_applied;  // by place: said so in this round
  };
  struct Instance {
    uint64_t decided = 0;                     // numbers up to here have an outcome
    std::map<uint64_t, AppliedStep> applied;  // the newest
    uint64_t last_applied = 0;
    std::optional<Slot> slot;
    std::vector<WorkerId> others;
    std::set<WorkerId> dead;  // of the others
    bool caller_dead = false;
    std::string line;       // empty: joined none
    bool set_back = false;  // this owner went back behind what the optimizer knows
  };
  struct Line {
    uint64_t applied = 0;
    bool restored = false;
  };

  static StepOutcome outcome_of(const Instance& instance, uint64_t number);
  static StepDecision decision(const Instance& instance, const StepId& step);
  absl::Status commit_decided(const StepId& step, const StepUpdate& update, OwnerActions& out);
  void apply(const StepId& step, const StepUpdate& update, OwnerActions& out);
  void drop_slot(const StepId& step, OwnerActions& out);
  void ask_others(const StepId& step, OwnerActions& out);
  bool add_dead(const StepId& step, WorkerId dead);
  void abort_if_nobody_applied(const StepId& step, OwnerActions& out);

  std::map<OptimizerId, Instance> instances_;
  std::map<std::string, Line> lines_;
  bool restored_ = false;  // lines that are not listed have lost what they had
  absl::Status damage_;
  StepId damaged_;  // the step that did it; for others it was applied
};

}  // namespace weft::dist_optim_internal
