// Applies the steps of one optimizer to its parameters on one owner, so that all owners apply a
// step or none does.
//
// PREPARE refuses everything that can be refused. After that a step is committed or aborted. A
// StepOwnerCore decides which of these may happen. This class holds the core's lock, the prepared
// gradients, and LibTorch's optimizer. Several optimizers may share one stepper and its state.
//
// Thread safety: all methods may be called from any thread. Steps of one stepper run one at a time.
// Lifetime: shares its ParameterSet.
// Errors: those of StepOwnerCore; InvalidArgument (a gradient does not fit, or the wrong number of
// learning rates), ResourceExhausted (no memory at PREPARE), DataLoss (a commit failed half-way;
// LibTorch's temporaries are the only allocations that are left to it).
// Protocol: dist_optim/steps/step_owner_core.h; docs/optimizer_protocol.md, "An owner".
#pragma once

#include <cstdint>
#include <map>
#include <memory>
#include <mutex>
#include <string>
#include <vector>

#include <ATen/core/Tensor.h>

#include "absl/status/statusor.h"
#include "weft/base/ids.h"
#include "weft/base/mutex.h"
#include "weft/dist_optim/optimizer_settings.h"
#include "weft/dist_optim/parameter_set.h"
#include "weft/dist_optim/steps/step_owner_core.h"

namespace weft::dist_optim_internal {

class ShardStepper {
 public:
  struct Group {
    std::vector<size_t> parameters;  // indices in the set
    OptimizerSettings settings;
  };
  using Applied = AppliedStep;
  static constexpr uint64_t kRemembered = StepOwnerCore::kRemembered;

  static absl::StatusOr<std::shared_ptr<ShardStepper>> make(std::shared_ptr<ParameterSet> set,
                                                            std::vector<Group> groups,
                                                            UpdateMode mode);
  ~ShardStepper();
  ShardStepper(const ShardStepper&) = delete;
  ShardStepper& operator=(const ShardStepper&) = delete;

  // `gradients`: one for each parameter of the set, undefined where the loss did not reach. Returns
  // the squared norm of those that belong to this stepper. A repeated number gets the same answer.
  // `learning_rates` are kept for a decision without the caller. If `may_clip`, memory for clipped
  // gradients is reserved now, and a gradient whose norm is not finite is refused by name.
  absl::StatusOr<double> prepare(const StepId& step, std::vector<at::Tensor> gradients,
                                 std::vector<double> learning_rates = {}, bool may_clip = false)
      ABSL_LOCKS_EXCLUDED(mutex_);

  // As in StepOwnerCore. Questions to other owners are added to `asks`.
  using Asks = std::vector<step::Ask>;
  absl::Status commit(const StepId& step, const StepUpdate& update) ABSL_LOCKS_EXCLUDED(mutex_);
  absl::Status abort(const StepId& step) ABSL_LOCKS_EXCLUDED(mutex_);
  absl::StatusOr<StepDecision> settle(const StepId& step) ABSL_LOCKS_EXCLUDED(mutex_);
  void meet(const OptimizerId& optimizer, std::vector<WorkerId> others) ABSL_LOCKS_EXCLUDED(mutex_);
  void on_worker_dead(const OptimizerId& optimizer, WorkerId dead, Asks& asks)
      ABSL_LOCKS_EXCLUDED(mutex_);
  StepDecision inquire(const StepId& step, const std::vector<WorkerId>& dead, Asks& asks)
      ABSL_LOCKS_EXCLUDED(mutex_);
  void on_answer(const StepId& step, size_t other, uint64_t round, const StepDecision& decision,
                 Asks& asks) ABSL_LOCKS_EXCLUDED(mutex_);
  StepOutcome outcome(const StepId& step) const ABSL_LOCKS_EXCLUDED(mutex_);
  absl::StatusOr<Applied> applied(const StepId& step) const ABSL_LOCKS_EXCLUDED(mutex_);
  std::vector<StepId> undecided() const ABSL_LOCKS_EXCLUDED(mutex_);
  absl::StatusOr<SequenceStanding> join(const OptimizerId& optimizer, const std::string& sequence)
      ABSL_LOCKS_EXCLUDED(mutex_);
  absl::Status resume(const OptimizerId& optimizer, uint64_t number, bool brought_back)
      ABSL_LOCKS_EXCLUDED(mutex_);

  // Nobody asks for this optimizer's steps any more. Never waits for a step that is under way.
  void forget(const OptimizerId& optimizer) ABSL_LOCKS_EXCLUDED(forgotten_mutex_);
  size_t optimizers() ABSL_LOCKS_EXCLUDED(mutex_);  // how many optimizers are remembered

  // Mode hogwild: prepares and commits in one call, in place.
  absl::Status apply(const StepId& step, std::vector<at::Tensor> gradients,
                     const StepUpdate& update) ABSL_LOCKS_EXCLUDED(mutex_);

  // A copy of the optimizer's state, named "<parameter>/<field>".
  TensorMap state() const ABSL_LOCKS_EXCLUDED(mutex_);
  // Whether load_state would accept it. InvalidArgument: an entry is missing, misshapen or unknown.
  absl::Status check_state(const TensorMap& state) const;
  absl::Status load_state(const TensorMap& state) ABSL_LOCKS_EXCLUDED(mutex_);

  std::string sequence_of(const OptimizerId& optimizer) const ABSL_LOCKS_EXCLUDED(mutex_);

  // ---- checkpoints: while the lock of hold() is held, no step is prepared or applied here
  std::unique_lock<Mutex> hold() const { return std::unique_lock<Mutex>(mutex_); }
  // Tells clang's thread-safety analysis, which does not follow std::unique_lock, that the caller
  // has the lock of hold(). Nothing checks this at run time.
  void assume_held() const ABSL_ASSERT_EXCLUSIVE_LOCK(mutex_) {}
  // Not OK: a step failed half-way, so the state must not be saved.
  absl::Status damage_while_held() const ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_) {
    return core_.damage();
  }
  TensorMap state_while_held() const ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);
  std::map<std::string, uint64_t> lines_while_held() const ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_) {
    return core_.sequences();
  }
  std::map<OptimizerId, uint64_t> newest_while_held() const ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_) {
    return core_.newest();
  }
  // Goes back to this state, which check_state has accepted, and to these steps.
  void restore_while_held(const TensorMap& state, const std::map<std::string, uint64_t>& sequences)
      ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);

  ParameterSet& parameters() const { return *set_; }
  const std::vector<Group>& groups() const { return groups_; }
  UpdateMode mode() const { return mode_; }

 private:
  // A prepared step: what PREPARE brought, and what the commit needs.
  struct Slot {
    uint64_t number = 0;
    std::vector<at::Tensor> gradients;  // by index in the set
    bool own_gradients = false;         // copies, which nobody else reads
    std::vector<size_t> touched;        // indices of the parameters with a gradient
    std::vector<at::Tensor> spares;     // fresh storage for these, if the step needs it
  };

  ShardStepper(std::shared_ptr<ParameterSet> set, std::vector<Group> groups, UpdateMode mode);
  absl::Status check(const std::vector<at::Tensor>& gradients) const;
  absl::Status check_rates(const std::vector<double>& rates) const;
  absl::StatusOr<double> prepare_locked(const StepId& step, std::vector<at::Tensor> gradients,
                                        std::vector<double> learning_rates, bool may_clip)
      ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);
  absl::Status commit_locked(const StepId& step, const StepUpdate& update)
      ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);
  void load_checked(const TensorMap& state) ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);
  absl::StatusOr<double> fill(Slot& slot) ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);
  void let_forgotten_go() ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);
  void carry_out(OwnerActions actions, Asks* asks) ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);
  absl::Status apply_now(const step::Apply& action) ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);
  void reserve(Slot& slot) ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);
  void run(Slot& slot, const StepUpdate& update) ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);

  const std::shared_ptr<ParameterSet> set_;  // shared with the module and other steppers
  const std::vector<Group> groups_;
  const UpdateMode mode_;
  std::vector<size_t> group_of_;     // by index; groups_.size(): not this optimizer's
  std::vector<at::Tensor> handles_;  // by index: LibTorch's optimizer writes through these
  mutable Mutex mutex_;              // locked before the set's lock
  std::unique_ptr<torch::optim::Optimizer> optimizer_ ABSL_GUARDED_BY(mutex_);
  std::vector<at::Tensor> spares_ ABSL_GUARDED_BY(mutex_);  // by index; for later slots
  StepOwnerCore core_ ABSL_GUARDED_BY(mutex_);
  std::map<OptimizerId, Slot> slots_ ABSL_GUARDED_BY(mutex_);  // the prepared steps
  Mutex forgotten_mutex_;                                      // locked after mutex_
  std::vector<OptimizerId> forgotten_
      ABSL_GUARDED_BY(forgotten_mutex_);  // taken over by the next step or JOIN
};

}  // namespace weft::dist_optim_internal
