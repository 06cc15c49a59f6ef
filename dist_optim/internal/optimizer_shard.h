// What a DistributedOptimizer keeps on each owner: takes its messages, finds the gradients of the
// context, and decides for itself when the caller died between PREPARE and COMMIT.
//
// Thread safety: all methods may be called from any thread. None blocks.
// Lifetime: created by the caller through the set's RRef; dies with the caller's references. One
// that has met others lives until the optimizer parts them, or until its caller is dead and what it
// left prepared is decided. Errors: those of ShardStepper, and of reading gradients (a released or
// failed context). Protocol: a shard left prepared whose caller died refuses that caller's COMMIT
// and asks the other shards of the optimizer, which refuse it too before they answer. Each answers
// or is dead. Any applied: it commits with that one's clip factor. Else it aborts.
#pragma once

#include <map>
#include <memory>
#include <string>
#include <tuple>
#include <vector>

#include "weft/dist_optim/internal/shard_stepper.h"
#include "weft/rpc/call_scope.h"
#include "weft/rpc/class.h"
#include "weft/rref/rref.h"

namespace weft::internal {

struct ShardGroup {
  std::vector<std::string> names;  // empty: all of the set
  OptimizerSettings settings;
};
inline auto weft_fields(ShardGroup& g) { return std::tie(g.names, g.settings); }

struct StepRequest {
  StepId step;
  ContextId context;
  StepUpdate update;        // its clip is used by hogwild steps only
  double max_norm = 0;      // 0: no clipping
  double others_norm2 = 0;  // of the shards that are prepared already
};
inline auto weft_fields(StepRequest& r) {
  return std::tie(r.step, r.context.creator.index, r.context.creator.incarnation, r.context.number,
                  r.update, r.max_norm, r.others_norm2);
}

// What a finished step says: the norm of all gradients and the factor that they were clipped by.
struct StepSummary {
  double norm2 = 0;
  double clip = 1;
};
inline auto weft_fields(StepSummary& s) { return std::tie(s.norm2, s.clip); }

struct Verdict {
  StepOutcome outcome = StepOutcome::kUnknown;
  double clip = 1;   // it was applied with
  double norm2 = 0;  // of this shard's gradients then
};
inline auto weft_fields(Verdict& v) { return std::tie(v.outcome, v.clip, v.norm2); }

// As LibTorch's clip_grad_norm_.
double clip_factor(double norm2, double max_norm);

class OptimizerShard : public std::enable_shared_from_this<OptimizerShard> {
 public:
  explicit OptimizerShard(std::shared_ptr<ShardStepper> stepper) : stepper_(std::move(stepper)) {}

  // The squared norm of this shard's gradients.
  absl::StatusOr<double> prepare(CallContext& caller, StepRequest request);
  absl::Status commit(StepId step, StepUpdate update) { return stepper_->commit(step, update); }
  absl::Status abort(StepId step) { return stepper_->abort(step); }
  // PREPARE and COMMIT in one, for the last shard: the others are prepared.
  absl::StatusOr<StepSummary> finish(StepRequest request);
  // hogwild.
  absl::Status apply(StepRequest request);
  // The caller asks: what is not applied here never will be.
  absl::StatusOr<Verdict> settle(StepId step);
  // Another owner asks, for the caller is dead: whose COMMIT is refused from now on.
  Verdict inquire(StepId step);

  // The optimizer's other shards, from its caller; forgotten when that says so or is dead.
  void meet(CallContext& caller, uint64_t optimizer, std::vector<RRef<OptimizerShard>> others)
      ABSL_LOCKS_EXCLUDED(mutex_);
  void part() ABSL_LOCKS_EXCLUDED(mutex_);

  TensorMap state() const { return stepper_->state(); }
  absl::Status check_state(TensorMap state) const { return stepper_->check_state(state); }
  absl::Status load_state(TensorMap state) { return stepper_->load_state(state); }

 private:
  struct Question;

  absl::StatusOr<std::vector<at::Tensor>> gradients(const ContextId& context) const;
  void watch(std::shared_ptr<RpcRuntime> runtime) ABSL_LOCKS_EXCLUDED(mutex_);
  void caller_died(const std::weak_ptr<RpcRuntime>& runtime) ABSL_LOCKS_EXCLUDED(mutex_);
  void resolve(const StepId& step, const std::vector<RRef<OptimizerShard>>& others,
               const std::weak_ptr<RpcRuntime>& runtime);
  static void ask(const std::shared_ptr<Question>& question, RRef<OptimizerShard> other);
  static void answered(const std::shared_ptr<Question>& question);
  Verdict verdict(const StepId& step, StepOutcome outcome) const;

  const std::shared_ptr<ShardStepper> stepper_;  // shared by optimizers of one shared_name
  Mutex mutex_;
  OptimizerId optimizer_ ABSL_GUARDED_BY(mutex_);  // invalid: has met nobody
  bool caller_dead_ ABSL_GUARDED_BY(mutex_) = false;
  std::vector<RRef<OptimizerShard>> others_ ABSL_GUARDED_BY(mutex_);
  bool watching_ ABSL_GUARDED_BY(mutex_) = false;
};

// Made through the set, on its owner. `shared_name` not empty: the state is shared with others of
// that name. FailedPrecondition: they have another mode, other groups or options.
std::shared_ptr<OptimizerShard> make_optimizer_shard(ParameterSet& set,
                                                     std::vector<ShardGroup> groups,
                                                     UpdateMode mode, std::string shared_name);

}  // namespace weft::internal

namespace weft {

WEFT_REGISTER_CLASS(ParameterSet, &ParameterSet::names, &ParameterSet::state,
                    &ParameterSet::load_state, &internal::make_optimizer_shard);

// A set of leaves that live here as values of their own; read as they are, without versions.
std::shared_ptr<ParameterSet> leaves_as_set(std::vector<RRef<at::Tensor>> leaves);
WEFT_REGISTER_FUNCTION(leaves_as_set);

namespace internal {
WEFT_REGISTER_CLASS(OptimizerShard, &OptimizerShard::prepare, &OptimizerShard::commit,
                    &OptimizerShard::abort, &OptimizerShard::finish, &OptimizerShard::apply,
                    &OptimizerShard::settle, &OptimizerShard::inquire, &OptimizerShard::meet,
                    &OptimizerShard::part, &OptimizerShard::state, &OptimizerShard::check_state,
                    &OptimizerShard::load_state);
}  // namespace internal
}  // namespace weft
