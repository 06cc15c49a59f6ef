// One optimizer's share on one owner: takes part in steps that all owners apply or none.
//
// A step is prepared (everything that can be refused is refused then), then committed or aborted.
// Numbers of one instance grow; a number that was passed over counts as aborted. Several instances
// may share one stepper and its state, each with its own numbers.
//
// Thread safety: all methods may be called from any thread; steps of one stepper run one at a time.
// Lifetime: shares its ParameterSet.
// Errors: InvalidArgument (a gradient does not fit), FailedPrecondition (a number that was decided
// otherwise), DataLoss (an earlier commit failed half-way: LibTorch's temporaries are the only
// allocations left to a commit).
// Protocol: mode locked of the optimizer's step.
#pragma once

#include <cstdint>
#include <map>
#include <memory>
#include <optional>
#include <string>
#include <tuple>
#include <vector>

#include <ATen/core/Tensor.h>

#include "absl/status/statusor.h"
#include "weft/base/ids.h"
#include "weft/base/mutex.h"
#include "weft/dist_optim/optimizer_settings.h"
#include "weft/dist_optim/parameter_set.h"

namespace weft::internal {

struct StepId {
  OptimizerId optimizer;
  uint64_t number = 0;  // from 1
  std::string to_string() const { return absl::StrCat(optimizer.to_string(), " step ", number); }
  bool operator==(const StepId&) const = default;
};
struct StepUpdate {
  std::vector<double> learning_rates;  // one per group
  double clip = 1.0;                   // times each gradient
};
enum class StepOutcome : uint8_t {
  kUnknown = 0,   // never heard of
  kPrepared = 1,  // undecided here
  kApplied = 2,
  kAborted = 3,
  kForgotten = 4,  // decided too long ago
};

class ShardStepper {
 public:
  struct Group {
    std::vector<size_t> parameters;  // places in the set
    OptimizerSettings settings;
  };
  // How many outcomes of an instance are kept for questions.
  static constexpr uint64_t kRemembered = 64;

  static absl::StatusOr<std::shared_ptr<ShardStepper>> make(std::shared_ptr<ParameterSet> set,
                                                            std::vector<Group> groups,
                                                            UpdateMode mode);
  ~ShardStepper();
  ShardStepper(const ShardStepper&) = delete;
  ShardStepper& operator=(const ShardStepper&) = delete;

  // `gradients`: one per parameter of the set, undefined where the loss did not reach. Returns the
  // squared norm of those that belong to this stepper. The same number again: the same answer.
  // `learning_rates`: what commit_fenced uses. `may_clip`: room for clipped gradients is made now.
  absl::StatusOr<double> prepare(const StepId& step, std::vector<at::Tensor> gradients,
                                 std::vector<double> learning_rates = {}, bool may_clip = false)
      ABSL_LOCKS_EXCLUDED(mutex_);
  absl::Status commit(const StepId& step, const StepUpdate& update) ABSL_LOCKS_EXCLUDED(mutex_);
  // Not prepared yet: it will be refused.
  absl::Status abort(const StepId& step) ABSL_LOCKS_EXCLUDED(mutex_);
  StepOutcome outcome(const StepId& step) const ABSL_LOCKS_EXCLUDED(mutex_);
  // For a caller that does not know: what is not applied here never will be.
  // DataLoss: it failed half-way.
  absl::StatusOr<StepOutcome> settle(const StepId& step) ABSL_LOCKS_EXCLUDED(mutex_);
  // Its caller is dead: from now on the owners decide. A prepared step stays prepared, but commit()
  // is refused; an unknown one never will be applied.
  StepOutcome fence(const StepId& step) ABSL_LOCKS_EXCLUDED(mutex_);
  // What the owners decided, if that is not abort().
  absl::Status commit_fenced(const StepId& step, double clip) ABSL_LOCKS_EXCLUDED(mutex_);
  // With what a step was applied, and the squared norm here; for those who do not know.
  struct Applied {
    double squared_norm = 0;
    StepUpdate update;
  };
  absl::StatusOr<Applied> applied(const StepId& step) const ABSL_LOCKS_EXCLUDED(mutex_);
  // Steps that are prepared and undecided.
  std::vector<StepId> undecided() const ABSL_LOCKS_EXCLUDED(mutex_);

  // hogwild: prepare and commit in one, in place.
  absl::Status apply(const StepId& step, std::vector<at::Tensor> gradients,
                     const StepUpdate& update) ABSL_LOCKS_EXCLUDED(mutex_);

  // What the optimizer remembers, as "<parameter>/<field>".
  TensorMap state() const ABSL_LOCKS_EXCLUDED(mutex_);
  // Whether load_state would take it. InvalidArgument: an entry is missing, misshapen or unknown.
  absl::Status check_state(const TensorMap& state) const;
  absl::Status load_state(const TensorMap& state) ABSL_LOCKS_EXCLUDED(mutex_);

  ParameterSet& parameters() const { return *set_; }
  const std::vector<Group>& groups() const { return groups_; }
  UpdateMode mode() const { return mode_; }

 private:
  struct Slot {
    uint64_t number = 0;
    double squared_norm = 0;
    std::vector<at::Tensor> gradients;  // by place in the set
    bool own_gradients = false;         // copies: nobody else reads them
    std::vector<size_t> touched;        // places with a gradient
    std::vector<double> learning_rates;
    bool fenced = false;
    std::vector<at::Tensor> spares;  // fresh storage for these, if a step needs it
  };
  struct Instance {
    uint64_t decided = 0;                 // numbers up to here have an outcome
    std::map<uint64_t, Applied> applied;  // the newest
    std::optional<Slot> slot;
  };

  ShardStepper(std::shared_ptr<ParameterSet> set, std::vector<Group> groups, UpdateMode mode);
  absl::Status check(const std::vector<at::Tensor>& gradients) const;
  absl::Status check_rates(const std::vector<double>& rates) const;
  StepOutcome outcome_of(const Instance& instance, uint64_t number) const;
  absl::StatusOr<double> prepare_locked(const StepId& step, std::vector<at::Tensor> gradients,
                                        bool may_clip) ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);
  absl::Status commit_locked(const StepId& step, const StepUpdate& update)
      ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);
  void reserve(Slot& slot) ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);
  void run(Slot& slot, const StepUpdate& update) ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);

  const std::shared_ptr<ParameterSet> set_;  // shared with the module and other steppers
  const std::vector<Group> groups_;
  const UpdateMode mode_;
  std::vector<size_t> group_of_;     // by place; groups_.size(): not ours
  std::vector<at::Tensor> handles_;  // by place: what LibTorch's optimizer writes through
  mutable Mutex mutex_;              // taken before the set's
  std::unique_ptr<torch::optim::Optimizer> optimizer_ ABSL_GUARDED_BY(mutex_);
  std::vector<at::Tensor> spares_ ABSL_GUARDED_BY(mutex_);  // by place; for slots to come
  std::map<OptimizerId, Instance> instances_ ABSL_GUARDED_BY(mutex_);
  absl::Status damage_ ABSL_GUARDED_BY(mutex_);
  StepId damaged_ ABSL_GUARDED_BY(mutex_);  // the step that did it; for others it was applied
};

inline auto weft_fields(StepId& s) {
  return std::tie(s.optimizer.creator.index, s.optimizer.creator.incarnation, s.optimizer.number,
                  s.number);
}
inline auto weft_fields(StepUpdate& u) { return std::tie(u.learning_rates, u.clip); }

}  // namespace weft::internal
