// Decides for one owner what becomes of each optimizer step: prepared, applied or aborted. If the
// caller dies in between, it decides together with the other owners.
//
// The step numbers of one optimizer grow. A caller decides one step before it begins the next. So a
// number that was passed over counts as aborted. Several optimizers may share one core; each has
// its own numbers.
//
// *Without the caller.* An owner that is prepared refuses the dead caller's COMMIT from then on:
// the step is fenced. It asks the other owners, and these fence the step too before they answer. If
// any owner answers "applied", the asker applies the step with that owner's clip factor. If each
// other owner is dead or answers otherwise, the asker aborts the step.
//
// A question names the owners that the asker knows dead. An owner that is asked ignores from then
// on what these may have said. If an asker learns of a death, it asks again. So the survivors stay
// equal even if an owner applied the step, told one other owner, and died.
//
// *Step sequences.* The steps of optimizers that follow each other under one
// name are one sequence. An owner that came back from a checkpoint refuses PREPARE of its sequences
// (DataLoss) until the program resumes them.
//
// Thread safety: none; call all methods under the driver's lock.
// Determinism: the same events give the same actions.
// Errors: FailedPrecondition (a number that was decided otherwise), Cancelled (the caller is dead),
// DataLoss (an earlier commit failed half-way, or this owner was set back).
// Protocol: docs/optimizer_protocol.md, "An owner" and "Without the caller"; docs/durable_steps.md.
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

// How this owner applied a step. Owners that do not know the outcome ask for it.
struct AppliedStep {
  double squared_norm = 0;
  StepUpdate update;
};

class StepOwnerCore {
 public:
  // How many applied steps of each optimizer are remembered, to answer questions.
  static constexpr uint64_t kRemembered = 64;

  // ---- the caller
  // Names the optimizer's other owners. Their order gives the indices of Ask and on_answer. One
  // worker may be in the list more than once.
  void meet(const OptimizerId& optimizer, std::vector<WorkerId> others);
  // If the step was prepared or applied before: its squared norm. nullopt: the driver checks and
  // reserves all that the step needs, and then calls on_prepared.
  absl::StatusOr<std::optional<double>> prepare(const StepId& step);
  // `learning_rates` are kept for a decision without the caller.
  void on_prepared(const StepId& step, double squared_norm, std::vector<double> learning_rates,
                   OwnerActions& out);
  absl::Status commit(const StepId& step, const StepUpdate& update, OwnerActions& out);
  // If the step is not prepared yet, a later PREPARE of it is refused.
  absl::Status abort(const StepId& step, OwnerActions& out);
  // Answers a caller that does not know the outcome. If the step is not applied here now, it never
  // will be. DataLoss: it failed half-way.
  absl::StatusOr<StepDecision> settle(const StepId& step, OwnerActions& out);
  // An Apply failed half-way. This step reports `why`, and every other step is refused with it.
  void on_damage(const StepId& step, absl::Status why);

  // ---- without the caller
  // A worker is dead for good. Nothing from it may be delivered afterwards. Call it also if an Ask
  // cannot be sent because the worker died before. The first one concerns one optimizer, the second
  // one all optimizers.
  void on_worker_dead(const OptimizerId& optimizer, WorkerId dead, OwnerActions& out);
  void on_worker_dead(WorkerId dead, OwnerActions& out);
  // Nobody asks for this optimizer's steps any more: drops what it left prepared.
  void forget(const OptimizerId& optimizer, OwnerActions& out);
  // Another owner asks. It knows the owners in `dead` to be dead.
  StepDecision inquire(const StepId& step, const std::vector<WorkerId>& dead, OwnerActions& out);
  void on_answer(const StepId& step, size_t other, uint64_t round, const StepDecision& decision,
                 OwnerActions& out);

  // ---- step sequences
  // The parameters are now those of a checkpoint. It holds each step sequence in `sequences` up to
  // the given step, and all others up to 0.
  void restore(const std::map<std::string, uint64_t>& sequences, OwnerActions& out);
  // The optimizer goes on with this step sequence. Unavailable: a step of an earlier optimizer is
  // undecided.
  absl::StatusOr<SequenceStanding> join(const OptimizerId& optimizer, const std::string& sequence);
  // The program goes on after step `number` of the sequence that the optimizer joined.
  // FailedPrecondition: it has joined none, it has an undecided step, or this owner is at another
  // step. If `brought_back` is set, another step is no error, because the program itself has
  // brought the parameters there.
  absl::Status resume(const OptimizerId& optimizer, uint64_t number, bool brought_back);
  std::string sequence_of(const OptimizerId& optimizer) const;  // empty: none
  // The newest applied step of each step sequence, and of each optimizer.
  std::map<std::string, uint64_t> sequences() const;
  std::map<OptimizerId, uint64_t> newest() const;

  const absl::Status& damage() const { return damage_; }  // OK: no commit failed half-way
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
    bool fenced = false;            // the caller's COMMIT is refused
    bool asking = false;            // the caller is dead, and the other owners are asked
    uint64_t round = 0;             // counts up; a "not applied" of an earlier round does not count
    std::set<WorkerId> dead;        // known dead here or by an asker; their answers are ignored
    std::vector<bool> not_applied;  // by index in `others`: answered so in this round
  };
  struct Instance {
    uint64_t decided = 0;                     // all numbers up to here are decided
    std::map<uint64_t, AppliedStep> applied;  // the newest kRemembered
    uint64_t last_applied = 0;
    std::optional<Slot> slot;
    std::vector<WorkerId> others;
    std::set<WorkerId> dead;  // those of `others` that are known dead
    bool caller_dead = false;
    std::string sequence;   // the step sequence; empty: joined none
    bool set_back = false;  // a checkpoint was loaded, and this optimizer has not resumed
  };
  struct Sequence {
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
  std::map<std::string, Sequence> sequences_;
  bool restored_ = false;  // a sequence that is not in sequences_ begins at 0 and has to resume
  absl::Status damage_;
  StepId damaged_;  // the step that caused damage_; it counts as applied
};

}  // namespace weft::dist_optim_internal
