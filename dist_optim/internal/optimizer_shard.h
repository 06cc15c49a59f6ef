// What a DistributedOptimizer keeps on each owner: takes its messages, finds the gradients of the
// context, and asks the others when the caller died between PREPARE and COMMIT.
//
// Thread safety: all methods may be called from any thread. None blocks.
// Lifetime: created by the caller through the set's RRef; dies with the caller's references. One
// that has met others lives until the optimizer parts them, or until its caller is dead and what it
// left prepared is decided. Errors: those of ShardStepper, and of reading gradients (a released or
// failed context). Protocol: internal/step_owner_core.h.
#pragma once

#include <map>
#include <memory>
#include <set>
#include <string>
#include <tuple>
#include <vector>

#include "weft/dist_optim/internal/shard_stepper.h"
#include "weft/rpc/class.h"
#include "weft/rpc/session/call_scope.h"
#include "weft/rref/rref.h"

namespace weft::dist_optim_internal {

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

// What an owner asks another one, of a step whose caller is dead.
struct StepInquiry {
  StepId step;
  std::vector<uint64_t> dead;  // WorkerId::bits of the owners that it knows dead
};
inline auto weft_fields(StepInquiry& i) { return std::tie(i.step, i.dead); }

class OptimizerShard : public std::enable_shared_from_this<OptimizerShard> {
 public:
  explicit OptimizerShard(std::shared_ptr<ShardStepper> stepper) : stepper_(std::move(stepper)) {}
  // Whoever could name its optimizer's steps named them through this.
  ~OptimizerShard();
  OptimizerShard(const OptimizerShard&) = delete;
  OptimizerShard& operator=(const OptimizerShard&) = delete;

  // The squared norm of this shard's gradients.
  absl::StatusOr<double> prepare(StepRequest request);
  // Complete once the step is as durable as the owner promises; so are finish and apply.
  Future<StepDurable> commit(StepId step, StepUpdate update);
  absl::Status abort(StepId step);
  // PREPARE and COMMIT in one, for the last shard: the others are prepared.
  Future<StepSummary> finish(StepRequest request);
  // hogwild.
  Future<StepDurable> apply(StepRequest request);
  // The caller asks: what is not applied here never will be.
  absl::StatusOr<StepDecision> settle(StepId step);
  // Another owner asks, for the caller is dead: whose COMMIT is refused from now on.
  StepDecision inquire(StepInquiry inquiry) ABSL_LOCKS_EXCLUDED(mutex_);

  // The caller's optimizer goes on with a line of steps (docs/durable_steps.md).
  absl::StatusOr<LineStanding> join(CallContext& caller, uint64_t optimizer, std::string line);
  // An owner that keeps checkpoints and is elsewhere in that line goes back to the one of this
  // step; one that keeps none is brought there by the program.
  absl::Status go_back(CallContext& caller, uint64_t optimizer, std::string line, uint64_t number);
  // The program goes on behind step `number` of that line; every owner is there.
  absl::Status resume(CallContext& caller, uint64_t optimizer, uint64_t number);

  // The optimizer's other shards, from its caller; forgotten when that says so or is dead.
  void meet(CallContext& caller, uint64_t optimizer, std::vector<RRef<OptimizerShard>> others)
      ABSL_LOCKS_EXCLUDED(mutex_);
  void part() ABSL_LOCKS_EXCLUDED(mutex_);

  TensorMap state() const { return stepper_->state(); }
  absl::Status check_state(TensorMap state) const { return stepper_->check_state(state); }
  // With a keeper: and written.
  absl::Status load_state(TensorMap state);

 private:
  using Others = std::vector<RRef<OptimizerShard>>;

  // To be forgotten with this shard.
  void note(const OptimizerId& optimizer) ABSL_LOCKS_EXCLUDED(mutex_);
  absl::StatusOr<std::vector<at::Tensor>> gradients(const ContextId& context) const;
  Future<StepDurable> durable_after(const StepId& step) const;
  void watch(std::shared_ptr<RpcRuntime> runtime) ABSL_LOCKS_EXCLUDED(mutex_);
  void caller_died(const std::weak_ptr<RpcRuntime>& runtime) ABSL_LOCKS_EXCLUDED(mutex_);
  void send(ShardStepper::Asks asks, const std::shared_ptr<const Others>& others,
            const std::weak_ptr<RpcRuntime>& runtime);
  void ask(const step::Ask& question, const std::shared_ptr<const Others>& others,
           const std::weak_ptr<RpcRuntime>& runtime);
  void answered(const step::Ask& question, const absl::StatusOr<StepDecision>& decision,
                const std::shared_ptr<const Others>& others,
                const std::weak_ptr<RpcRuntime>& runtime);

  const std::shared_ptr<ShardStepper> stepper_;  // shared by optimizers of one shared_name
  Mutex mutex_;
  std::set<OptimizerId> noted_ ABSL_GUARDED_BY(mutex_);  // one, of a caller that keeps the rules
  OptimizerId optimizer_ ABSL_GUARDED_BY(mutex_);        // invalid: has met nobody
  Others others_ ABSL_GUARDED_BY(mutex_);
  std::weak_ptr<const Others> asked_ ABSL_GUARDED_BY(mutex_);  // while questions are open
  bool watching_ ABSL_GUARDED_BY(mutex_) = false;
};

// Made through the set, on its owner. `shared_name` not empty: the state is shared with others of
// that name. FailedPrecondition: they have another mode, other groups or options.
std::shared_ptr<OptimizerShard> make_optimizer_shard(ParameterSet& set,
                                                     std::vector<ShardGroup> groups,
                                                     UpdateMode mode, std::string shared_name);

}  // namespace weft::dist_optim_internal

namespace weft {

WEFT_REGISTER_CLASS(ParameterSet, &ParameterSet::names, &ParameterSet::state,
                    &ParameterSet::load_state, &dist_optim_internal::make_optimizer_shard);

// A set of leaves that live here as values of their own; read as they are, without versions.
std::shared_ptr<ParameterSet> leaves_as_set(std::vector<RRef<at::Tensor>> leaves);
WEFT_REGISTER_FUNCTION(leaves_as_set);

namespace dist_optim_internal {
WEFT_REGISTER_CLASS(OptimizerShard, &OptimizerShard::prepare, &OptimizerShard::commit,
                    &OptimizerShard::abort, &OptimizerShard::finish, &OptimizerShard::apply,
                    &OptimizerShard::settle, &OptimizerShard::inquire, &OptimizerShard::meet,
                    &OptimizerShard::part, &OptimizerShard::join, &OptimizerShard::go_back,
                    &OptimizerShard::resume, &OptimizerShard::state, &OptimizerShard::check_state,
                    &OptimizerShard::load_state);
}  // namespace dist_optim_internal
}  // namespace weft
