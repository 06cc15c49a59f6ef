// Receives the messages of a DistributedOptimizer on one owner: finds the gradients of the context
// and passes them to the stepper. If the caller dies between PREPARE and COMMIT, it asks the other
// shards.
//
// Thread safety: all methods may be called from any thread.
// Blocking: load_state waits until a checkpoint is written, if the owner keeps checkpoints; go_back
// reads and writes files then. A method that changes parameters may wait for a step that is under
// way.
// Lifetime: the caller makes it through the set's RRef, and it dies with the caller's references. A
// shard that has met others lives longer: until the optimizer parts them, or until its caller is
// dead and the step that it left prepared is decided.
// Errors: those of ShardStepper, and those of reading gradients (a released or failed context).
// Protocol: docs/optimizer_protocol.md, "Messages" and "Without the caller".
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
  std::vector<std::string> names;  // empty: all parameters of the set
  OptimizerSettings settings;
};
inline auto weft_fields(ShardGroup& g) { return std::tie(g.names, g.settings); }

struct StepRequest {
  StepId step;
  ContextId context;
  StepUpdate update;        // its clip factor is used in mode hogwild only
  double max_norm = 0;      // 0: no clipping
  double others_norm2 = 0;  // FINISH: of the shards that are prepared already
};
inline auto weft_fields(StepRequest& r) {
  return std::tie(r.step, r.context.creator.index, r.context.creator.incarnation, r.context.number,
                  r.update, r.max_norm, r.others_norm2);
}

// The question of one owner to another about a step whose caller is dead.
struct StepInquiry {
  StepId step;
  std::vector<uint64_t> dead;  // WorkerId::bits of the owners that the asker knows dead
};
inline auto weft_fields(StepInquiry& i) { return std::tie(i.step, i.dead); }

class OptimizerShard : public std::enable_shared_from_this<OptimizerShard> {
 public:
  explicit OptimizerShard(std::shared_ptr<ShardStepper> stepper) : stepper_(std::move(stepper)) {}
  // The stepper forgets the optimizers whose messages came through this shard.
  ~OptimizerShard();
  OptimizerShard(const OptimizerShard&) = delete;
  OptimizerShard& operator=(const OptimizerShard&) = delete;

  // Returns the squared norm of this shard's gradients.
  absl::StatusOr<double> prepare(StepRequest request);
  // Completes when the step is as durable as the owner promises. The same holds for finish and
  // apply.
  Future<StepDurable> commit(StepId step, StepUpdate update);
  absl::Status abort(StepId step);
  // PREPARE and COMMIT in one message, for the last shard. All other shards are prepared already.
  Future<StepSummary> finish(StepRequest request);
  // Mode hogwild.
  Future<StepDurable> apply(StepRequest request);
  // The caller asks for the outcome. If the step is not applied here now, it never will be.
  absl::StatusOr<StepDecision> settle(StepId step);
  // Another owner asks because the caller is dead. The caller's COMMIT is refused from now on.
  StepDecision inquire(StepInquiry inquiry) ABSL_LOCKS_EXCLUDED(mutex_);

  // The caller's optimizer goes on with this step sequence (docs/durable_steps.md).
  absl::StatusOr<SequenceStanding> join(CallContext& caller, uint64_t optimizer,
                                        std::string sequence);
  // An owner that keeps checkpoints and is at another step of the sequence goes back to its
  // checkpoint of step `number`. If the owner keeps none, this changes nothing: the program brings
  // it there.
  absl::Status go_back(CallContext& caller, uint64_t optimizer, std::string sequence,
                       uint64_t number);
  // The program goes on after step `number` of the sequence. Every owner is there.
  absl::Status resume(CallContext& caller, uint64_t optimizer, uint64_t number);

  // The caller names the optimizer's other shards. This shard forgets them at part(), or when the
  // caller is dead.
  void meet(CallContext& caller, uint64_t optimizer, std::vector<RRef<OptimizerShard>> others)
      ABSL_LOCKS_EXCLUDED(mutex_);
  void part() ABSL_LOCKS_EXCLUDED(mutex_);

  TensorMap state() const { return stepper_->state(); }
  absl::Status check_state(TensorMap state) const { return stepper_->check_state(state); }
  // If the owner keeps checkpoints, it also writes one.
  absl::Status load_state(TensorMap state);

 private:
  using Others = std::vector<RRef<OptimizerShard>>;

  // The stepper forgets this optimizer when the shard dies.
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

  const std::shared_ptr<ShardStepper> stepper_;  // shared by optimizers with one shared_name
  Mutex mutex_;
  std::set<OptimizerId> noted_ ABSL_GUARDED_BY(mutex_);  // one if the caller keeps the protocol
  OptimizerId optimizer_ ABSL_GUARDED_BY(mutex_);        // invalid: has met no other shards
  Others others_ ABSL_GUARDED_BY(mutex_);
  std::weak_ptr<const Others> asked_ ABSL_GUARDED_BY(mutex_);  // valid while questions are open
  bool watching_ ABSL_GUARDED_BY(mutex_) = false;
};

// Called through the set on its owner. Optimizers with the same `shared_name` share the state
// there, unless it is empty. FailedPrecondition: they have another mode, other groups or options.
std::shared_ptr<OptimizerShard> make_optimizer_shard(ParameterSet& set,
                                                     std::vector<ShardGroup> groups,
                                                     UpdateMode mode, std::string shared_name);

}  // namespace weft::dist_optim_internal

namespace weft {

WEFT_DECLARE_CLASS(ParameterSet, &ParameterSet::names, &ParameterSet::state,
                   &ParameterSet::load_state, &dist_optim_internal::make_optimizer_shard);

// Makes a set of leaves that are RRef values on this worker. They are read directly, without
// versions.
std::shared_ptr<ParameterSet> leaves_as_set(std::vector<RRef<at::Tensor>> leaves);
WEFT_REGISTER_FUNCTION(leaves_as_set);

namespace dist_optim_internal {
WEFT_DECLARE_CLASS(OptimizerShard, &OptimizerShard::prepare, &OptimizerShard::commit,
                   &OptimizerShard::abort, &OptimizerShard::finish, &OptimizerShard::apply,
                   &OptimizerShard::settle, &OptimizerShard::inquire, &OptimizerShard::meet,
                   &OptimizerShard::part, &OptimizerShard::join, &OptimizerShard::go_back,
                   &OptimizerShard::resume, &OptimizerShard::state, &OptimizerShard::check_state,
                   &OptimizerShard::load_state);
}  // namespace dist_optim_internal
}  // namespace weft
