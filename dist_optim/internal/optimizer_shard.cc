#include "weft/dist_optim/internal/optimizer_shard.h"

#include <algorithm>
#include <utility>

#include "absl/strings/str_cat.h"
#include "weft/base/faults/fail_point.h"
#include "weft/base/status.h"
#include "weft/dist_autograd/autograd_driver.h"
#include "weft/dist_optim/steps/step_keeper.h"
#include "weft/rpc/worker_runtime.h"

namespace weft {
namespace dist_optim_internal {
namespace {

// How often a shard checks whether its caller is live. Objects get no notice of a worker's death.
constexpr Nanoseconds kLook = std::chrono::milliseconds(50);

bool is_live(RpcRuntime& runtime, WorkerId worker) {
  auto* full = dynamic_cast<rpc_internal::WorkerRuntime*>(&runtime);
  return worker == runtime.id() || (full != nullptr && full->agent().is_live(worker));
}

OptimizerSettings without_rate(OptimizerSettings settings) {
  std::visit([](auto& s) { s.lr = 0; }, settings);
  return settings;
}

// Compares all but the learning rates, which every step brings.
bool alike(const std::vector<ShardStepper::Group>& a, const std::vector<ShardStepper::Group>& b) {
  return std::equal(a.begin(), a.end(), b.begin(), b.end(), [](const auto& one, const auto& other) {
    return one.parameters == other.parameters &&
           without_rate(one.settings) == without_rate(other.settings);
  });
}

}  // namespace

OptimizerShard::~OptimizerShard() {
  MutexLock lock(mutex_);
  for (const OptimizerId& optimizer : noted_) stepper_->forget(optimizer);
}

void OptimizerShard::note(const OptimizerId& optimizer) {
  MutexLock lock(mutex_);
  noted_.insert(optimizer);
}

absl::StatusOr<std::vector<at::Tensor>> OptimizerShard::gradients(const ContextId& context) const {
  std::vector<at::Tensor> result(stepper_->parameters().size());
  const std::vector<at::Tensor> leaves = stepper_->parameters().leaves(context);
  const bool raw = stepper_->parameters().reading() == ParameterSet::Reading::kLeaves;
  const std::vector<at::Tensor>& read = raw ? stepper_->parameters().live() : leaves;
  if (read.empty()) return result;  // the context has not read these parameters
  WEFT_ASSIGN_OR_RETURN(const std::shared_ptr<RpcRuntime> runtime, rpc_internal::current_runtime());
  WEFT_ASSIGN_OR_RETURN(const std::shared_ptr<dist_autograd_internal::AutogradDriver> driver,
                        dist_autograd_internal::AutogradDriver::of(*runtime));
  WEFT_RETURN_IF_ERROR(driver->check_settled(context));
  for (size_t i = 0; i < read.size(); ++i) {
    WEFT_ASSIGN_OR_RETURN(result[i], driver->gradient(context, read[i]));
  }
  return result;
}

absl::StatusOr<double> OptimizerShard::prepare(StepRequest request) {
  note(request.step.optimizer);
  WEFT_ASSIGN_OR_RETURN(std::vector<at::Tensor> found, gradients(request.context));
  absl::StatusOr<double> norm2 =
      stepper_->prepare(request.step, std::move(found), std::move(request.update.learning_rates),
                        request.max_norm > 0);
  WEFT_FAIL_POINT("shard.prepared");
  return norm2;
}

Future<StepDurable> OptimizerShard::durable_after(const StepId& step) const {
  const std::shared_ptr<StepKeeper> keeper = stepper_->parameters().keeper();
  if (keeper == nullptr) return Future<StepDurable>::ready(StepDurable());
  return keeper->after_step(step, stepper_->sequence_of(step.optimizer));
}

Future<StepDurable> OptimizerShard::commit(StepId step, StepUpdate update) {
  absl::Status committed = stepper_->commit(step, update);
  if (!committed.ok()) return Future<StepDurable>::ready(std::move(committed));
  return durable_after(step);
}

Future<StepSummary> OptimizerShard::finish(StepRequest request) {
  using Answer = Future<StepSummary>;
  note(request.step.optimizer);
  absl::StatusOr<std::vector<at::Tensor>> found = gradients(request.context);
  if (!found.ok()) return Answer::ready(found.status());
  const absl::StatusOr<double> own =
      stepper_->prepare(request.step, *std::move(found), {}, request.max_norm > 0);
  if (!own.ok()) return Answer::ready(own.status());
  StepSummary summary;
  summary.norm2 = *own + request.others_norm2;
  absl::Status committed =
      check_norm(summary.norm2, request.max_norm, "the gradients of all owners");
  if (committed.ok()) {
    summary.clip = clip_factor(summary.norm2, request.max_norm);
    request.update.clip = summary.clip;
    committed = stepper_->commit(request.step, request.update);
  }
  if (!committed.ok()) {
    (void)stepper_->abort(request.step);
    return Answer::ready(committed);
  }
  if (stepper_->parameters().keeper() == nullptr) return Answer::ready(summary);
  return durable_after(request.step).then([summary](const Future<StepDurable>& durable) mutable {
    summary.durable = durable.wait();
    return summary;
  });
}

Future<StepDurable> OptimizerShard::apply(StepRequest request) {
  note(request.step.optimizer);
  absl::StatusOr<std::vector<at::Tensor>> found = gradients(request.context);
  if (!found.ok()) return Future<StepDurable>::ready(found.status());
  absl::Status applied = stepper_->apply(request.step, *std::move(found), request.update);
  if (!applied.ok()) return Future<StepDurable>::ready(std::move(applied));
  return durable_after(request.step);
}

absl::Status OptimizerShard::abort(StepId step) {
  note(step.optimizer);
  return stepper_->abort(step);
}

absl::StatusOr<StepDecision> OptimizerShard::settle(StepId step) {
  note(step.optimizer);
  return stepper_->settle(step);
}

absl::Status OptimizerShard::load_state(TensorMap state) {
  WEFT_RETURN_IF_ERROR(stepper_->load_state(state));
  // If this fails, the result of the next step tells why.
  const std::shared_ptr<StepKeeper> keeper = stepper_->parameters().keeper();
  if (keeper != nullptr) (void)keeper->save().result();
  return absl::OkStatus();
}

// ---- step sequences

absl::StatusOr<SequenceStanding> OptimizerShard::join(CallContext& caller, uint64_t optimizer,
                                                      std::string sequence) {
  note({caller.caller(), optimizer});
  return stepper_->join({caller.caller(), optimizer}, sequence);
}

absl::Status OptimizerShard::go_back(CallContext& caller, uint64_t optimizer, std::string sequence,
                                     uint64_t number) {
  note({caller.caller(), optimizer});
  WEFT_ASSIGN_OR_RETURN(const SequenceStanding standing,
                        stepper_->join({caller.caller(), optimizer}, sequence));
  const std::shared_ptr<StepKeeper> keeper = stepper_->parameters().keeper();
  if (keeper == nullptr || standing.applied == number) return absl::OkStatus();
  return keeper->go_back(sequence, number);
}

absl::Status OptimizerShard::resume(CallContext& caller, uint64_t optimizer, uint64_t number) {
  note({caller.caller(), optimizer});
  const bool brought_back = stepper_->parameters().keeper() == nullptr;
  return stepper_->resume({caller.caller(), optimizer}, number, brought_back);
}

// ---- without the caller

void OptimizerShard::meet(CallContext& caller, uint64_t optimizer,
                          std::vector<RRef<OptimizerShard>> others) {
  const absl::StatusOr<std::shared_ptr<RpcRuntime>> runtime = rpc_internal::current_runtime();
  if (!runtime.ok()) throw RpcError(runtime.status());
  bool start = false;
  note({caller.caller(), optimizer});
  {
    std::vector<WorkerId> owners;
    for (const RRef<OptimizerShard>& other : others) owners.push_back(other.owner());
    MutexLock lock(mutex_);
    optimizer_ = {caller.caller(), optimizer};
    others_.swap(others);
    stepper_->meet(optimizer_, std::move(owners));
    start = !std::exchange(watching_, true);
  }
  if (start) watch(*runtime);
}

void OptimizerShard::part() {
  std::vector<RRef<OptimizerShard>> others;  // destroyed after the lock is released
  MutexLock lock(mutex_);
  others.swap(others_);
  optimizer_ = {};
}

// The timer holds this shard, because a dead caller may have held its last reference.
void OptimizerShard::watch(std::shared_ptr<RpcRuntime> runtime) {
  Clock& clock = runtime->clock();
  clock.call_at(clock.now() + kLook, [self = shared_from_this(),
                                      weak_runtime = std::weak_ptr<RpcRuntime>(runtime)] {
    const auto live = weak_runtime.lock();
    if (live == nullptr) return;
    bool caller_dead = false;
    {
      MutexLock lock(self->mutex_);
      if (!self->optimizer_.creator.valid()) {
        self->watching_ = false;
        return;
      }
      caller_dead = !is_live(*live, self->optimizer_.creator);
      if (caller_dead) self->watching_ = false;
    }
    if (!caller_dead) {
      self->watch(live);
    } else {
      live->executor().schedule([self, weak_runtime] { self->caller_died(weak_runtime); });
    }
  });
}

void OptimizerShard::caller_died(const std::weak_ptr<RpcRuntime>& runtime) {
  WEFT_FAIL_POINT("shard.caller.died");
  // Only the open questions hold these references. Otherwise the shards would keep each other
  // alive.
  auto others = std::make_shared<Others>();
  OptimizerId optimizer;
  {
    MutexLock lock(mutex_);
    others->swap(others_);
    asked_ = others;
    optimizer = std::exchange(optimizer_, {});
  }
  ShardStepper::Asks asks;
  stepper_->on_worker_dead(optimizer, optimizer.creator, asks);
  send(std::move(asks), others, runtime);
}

StepDecision OptimizerShard::inquire(StepInquiry inquiry) {
  note(inquiry.step.optimizer);
  std::vector<WorkerId> dead;
  for (const uint64_t bits : inquiry.dead) dead.push_back(WorkerId::from_bits(bits));
  ShardStepper::Asks asks;
  const StepDecision decision = stepper_->inquire(inquiry.step, dead, asks);
  if (asks.empty()) return decision;
  std::shared_ptr<const Others> others;
  {
    MutexLock lock(mutex_);
    others = asked_.lock();
  }
  const absl::StatusOr<std::shared_ptr<RpcRuntime>> runtime = rpc_internal::current_runtime();
  if (others != nullptr && runtime.ok()) send(std::move(asks), others, *runtime);
  return decision;
}

void OptimizerShard::send(ShardStepper::Asks asks, const std::shared_ptr<const Others>& others,
                          const std::weak_ptr<RpcRuntime>& runtime) {
  for (const step::Ask& question : asks) ask(question, others, runtime);
}

void OptimizerShard::ask(const step::Ask& question, const std::shared_ptr<const Others>& others,
                         const std::weak_ptr<RpcRuntime>& runtime) {
  const auto live = runtime.lock();
  if (live == nullptr) return;
  Future<StepDecision> decision = Future<StepDecision>::ready(absl::CancelledError("not asked"));
  try {
    CallScope scope;
    scope.runtime = live;
    CallScopeGuard guard(std::move(scope));
    StepInquiry inquiry{question.step, {}};
    for (const WorkerId dead : question.dead) inquiry.dead.push_back(dead.bits());
    decision = others->at(question.other)
                   .with({.timeout = absl::InfiniteDuration()})
                   .rpc_async(&OptimizerShard::inquire, std::move(inquiry));
  } catch (const RpcError& refused) {
    decision = Future<StepDecision>::ready(refused.status());
  }
  // The answer may apply the step, so it is handled on the executor.
  decision.state()->on_complete_inline(
      [self = shared_from_this(), question, decision, others, runtime] {
        const auto live = runtime.lock();
        if (live == nullptr) return;
        live->executor().schedule([self, question, decision, others, runtime] {
          self->answered(question, decision.result(), others, runtime);
        });
      });
}

void OptimizerShard::answered(const step::Ask& question,
                              const absl::StatusOr<StepDecision>& decision,
                              const std::shared_ptr<const Others>& others,
                              const std::weak_ptr<RpcRuntime>& runtime) {
  const auto live = runtime.lock();
  if (live == nullptr || stepper_->outcome(question.step) != StepOutcome::kPrepared) return;
  const WorkerId owner = others->at(question.other).owner();
  ShardStepper::Asks asks;
  if (decision.ok()) {
    stepper_->on_answer(question.step, question.other, question.round, *decision, asks);
    if (stepper_->outcome(question.step) == StepOutcome::kApplied) {
      (void)durable_after(question.step);  // no caller waits for it
    }
  } else if (!is_live(*live, owner) || rref_internal::is_rref_lost(decision.status())) {
    stepper_->on_worker_dead(question.step.optimizer, owner, asks);
  } else {
    // The owner is live and has not answered: it may have applied the step. So ask it again.
    Clock& clock = live->clock();
    clock.call_at(clock.now() + kLook, [self = shared_from_this(), question, others, runtime] {
      const auto live = runtime.lock();
      if (live == nullptr) return;
      live->executor().schedule(
          [self, question, others, runtime] { self->ask(question, others, runtime); });
    });
    return;
  }
  send(std::move(asks), others, runtime);
}

std::shared_ptr<OptimizerShard> make_optimizer_shard(ParameterSet& set,
                                                     std::vector<ShardGroup> groups,
                                                     UpdateMode mode, std::string shared_name) {
  std::vector<ShardStepper::Group> placed;
  for (ShardGroup& group : groups) {
    ShardStepper::Group& target = placed.emplace_back();
    target.settings = group.settings;
    if (group.names.empty()) group.names = set.names();
    for (const std::string& name : group.names) {
      const absl::StatusOr<size_t> place = set.index_of(name);
      if (!place.ok()) throw RpcError(place.status());
      target.parameters.push_back(*place);
    }
    std::sort(target.parameters.begin(), target.parameters.end());
  }
  const auto make = [&]() -> std::shared_ptr<ShardStepper> {
    absl::StatusOr<std::shared_ptr<ShardStepper>> stepper =
        ShardStepper::make(set.shared_from_this(), placed, mode);
    if (!stepper.ok()) throw RpcError(stepper.status());
    return *std::move(stepper);
  };
  const auto make_kept = [&]() -> std::shared_ptr<ShardStepper> {
    std::shared_ptr<ShardStepper> stepper = make();
    const std::shared_ptr<StepKeeper> keeper = set.keeper();
    const absl::Status kept =
        keeper == nullptr ? absl::OkStatus() : keeper->add(shared_name, stepper);
    if (!kept.ok()) throw RpcError(kept);
    return stepper;
  };
  if (shared_name.empty()) return std::make_shared<OptimizerShard>(make_kept());
  auto stepper = std::static_pointer_cast<ShardStepper>(set.shared(shared_name, make_kept));
  if (stepper->mode() != mode || !alike(stepper->groups(), placed)) {
    throw RpcError(absl::FailedPreconditionError(
        absl::StrCat("the optimizer ", shared_name, " has another mode, other groups or options")));
  }
  return std::make_shared<OptimizerShard>(std::move(stepper));
}

WEFT_DEFINE_CLASS(OptimizerShard);

}  // namespace dist_optim_internal

WEFT_DEFINE_CLASS(ParameterSet);

std::shared_ptr<ParameterSet> leaves_as_set(std::vector<RRef<at::Tensor>> leaves) {
  std::vector<NamedParameter> parameters;
  for (size_t i = 0; i < leaves.size(); ++i) {
    parameters.push_back({absl::StrCat("parameter", i), leaves[i].local_value()});
  }
  return std::make_shared<ParameterSet>(std::move(parameters), ParameterSet::Reading::kLeaves);
}

}  // namespace weft
