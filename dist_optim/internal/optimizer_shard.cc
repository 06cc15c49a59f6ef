#include "weft/dist_optim/internal/optimizer_shard.h"

#include <algorithm>
#include <atomic>
#include <cmath>
#include <optional>
#include <utility>

#include "absl/strings/str_cat.h"
#include "weft/base/log.h"
#include "weft/base/status.h"
#include "weft/dist_autograd/internal/autograd_driver.h"
#include "weft/rpc/internal/worker_runtime.h"

namespace weft {
namespace internal {
namespace {

// How often a shard looks whether its caller lives: nobody announces deaths to an object.
constexpr Nanoseconds kLook = std::chrono::milliseconds(50);

bool is_live(RpcRuntime& runtime, WorkerId worker) {
  auto* full = dynamic_cast<WorkerRuntime*>(&runtime);
  return worker == runtime.id() || (full != nullptr && full->agent().is_live(worker));
}

void report(const StepId& step, const absl::Status& outcome) {
  if (outcome.ok()) return;
  log_warning(step.to_string(), " of a dead caller: ", outcome.ToString());
}

OptimizerSettings without_rate(OptimizerSettings settings) {
  std::visit([](auto& s) { s.lr = 0; }, settings);
  return settings;
}

// But for the learning rates, which every step brings.
bool alike(const std::vector<ShardStepper::Group>& a, const std::vector<ShardStepper::Group>& b) {
  return std::equal(a.begin(), a.end(), b.begin(), b.end(), [](const auto& one, const auto& other) {
    return one.parameters == other.parameters &&
           without_rate(one.settings) == without_rate(other.settings);
  });
}

}  // namespace

double clip_factor(double norm2, double max_norm) {
  if (max_norm <= 0) return 1.0;
  return std::min(1.0, max_norm / (std::sqrt(norm2) + 1e-6));
}

absl::StatusOr<std::vector<at::Tensor>> OptimizerShard::gradients(const ContextId& context) const {
  std::vector<at::Tensor> result(stepper_->parameters().size());
  const std::vector<at::Tensor> leaves = stepper_->parameters().leaves(context);
  const bool raw = stepper_->parameters().reading() == ParameterSet::Reading::kLeaves;
  const std::vector<at::Tensor>& read = raw ? stepper_->parameters().live() : leaves;
  if (read.empty()) return result;  // the context never came by here
  WEFT_ASSIGN_OR_RETURN(const std::shared_ptr<RpcRuntime> runtime, current_runtime());
  WEFT_ASSIGN_OR_RETURN(const std::shared_ptr<AutogradDriver> driver, AutogradDriver::of(*runtime));
  WEFT_RETURN_IF_ERROR(driver->check_settled(context));
  for (size_t i = 0; i < read.size(); ++i) {
    WEFT_ASSIGN_OR_RETURN(result[i], driver->gradient(context, read[i]));
  }
  return result;
}

absl::StatusOr<double> OptimizerShard::prepare(CallContext&, StepRequest request) {
  WEFT_ASSIGN_OR_RETURN(std::vector<at::Tensor> found, gradients(request.context));
  WEFT_ASSIGN_OR_RETURN(
      const double norm,
      stepper_->prepare(request.step, std::move(found), std::move(request.update.learning_rates),
                        request.max_norm > 0));
  MutexLock lock(mutex_);
  if (caller_dead_) {  // nobody would decide it
    (void)stepper_->abort(request.step);
    return absl::CancelledError(absl::StrCat("the caller of ", request.step.to_string(), " died"));
  }
  return norm;
}

absl::StatusOr<StepSummary> OptimizerShard::finish(StepRequest request) {
  WEFT_ASSIGN_OR_RETURN(std::vector<at::Tensor> found, gradients(request.context));
  WEFT_ASSIGN_OR_RETURN(const double own, stepper_->prepare(request.step, std::move(found), {},
                                                            request.max_norm > 0));
  StepSummary summary;
  summary.norm2 = own + request.others_norm2;
  summary.clip = clip_factor(summary.norm2, request.max_norm);
  request.update.clip = summary.clip;
  const absl::Status committed = stepper_->commit(request.step, request.update);
  if (!committed.ok()) {
    (void)stepper_->abort(request.step);
    return committed;
  }
  return summary;
}

absl::Status OptimizerShard::apply(StepRequest request) {
  WEFT_ASSIGN_OR_RETURN(std::vector<at::Tensor> found, gradients(request.context));
  return stepper_->apply(request.step, std::move(found), request.update);
}

Verdict OptimizerShard::verdict(const StepId& step, StepOutcome outcome) const {
  Verdict verdict;
  verdict.outcome = outcome;
  if (outcome == StepOutcome::kApplied) {
    const absl::StatusOr<ShardStepper::Applied> applied = stepper_->applied(step);
    if (applied.ok()) {
      verdict.clip = applied->update.clip;
      verdict.norm2 = applied->squared_norm;
    }
  }
  return verdict;
}

absl::StatusOr<Verdict> OptimizerShard::settle(StepId step) {
  WEFT_ASSIGN_OR_RETURN(const StepOutcome outcome, stepper_->settle(step));
  return verdict(step, outcome);
}
Verdict OptimizerShard::inquire(StepId step) { return verdict(step, stepper_->fence(step)); }

void OptimizerShard::meet(CallContext& caller, uint64_t optimizer,
                          std::vector<RRef<OptimizerShard>> others) {
  const absl::StatusOr<std::shared_ptr<RpcRuntime>> runtime = current_runtime();
  if (!runtime.ok()) throw RpcError(runtime.status());
  bool start = false;
  {
    MutexLock lock(mutex_);
    optimizer_ = {caller.caller(), optimizer};
    others_.swap(others);
    start = !std::exchange(watching_, true);
  }
  if (start) watch(*runtime);
}

void OptimizerShard::part() {
  std::vector<RRef<OptimizerShard>> others;  // let go outside the lock
  MutexLock lock(mutex_);
  others.swap(others_);
  optimizer_ = {};
}

// Holds this shard: when its caller is dead, perhaps nobody else does any more.
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
      self->caller_dead_ = caller_dead;
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
  std::vector<RRef<OptimizerShard>> others;
  OptimizerId optimizer;
  {
    MutexLock lock(mutex_);
    others = others_;
    optimizer = optimizer_;
  }
  for (const StepId& step : stepper_->undecided()) {
    if (step.optimizer == optimizer) resolve(step, others, runtime);
  }
  part();
}

struct OptimizerShard::Question {
  std::shared_ptr<OptimizerShard> self;
  StepId step;
  std::weak_ptr<RpcRuntime> runtime;  // weak: the question may outlast the worker
  std::atomic<size_t> open{1};
  std::atomic<bool> applied{false};  // by one of those asked
};

void OptimizerShard::resolve(const StepId& step, const std::vector<RRef<OptimizerShard>>& others,
                             const std::weak_ptr<RpcRuntime>& runtime) {
  if (stepper_->fence(step) != StepOutcome::kPrepared) return;
  auto question = std::make_shared<Question>();
  question->self = shared_from_this();
  question->step = step;
  question->runtime = runtime;
  question->open += others.size();
  for (const RRef<OptimizerShard>& other : others) ask(question, other);
  answered(question);
}

void OptimizerShard::ask(const std::shared_ptr<Question>& question, RRef<OptimizerShard> other) {
  const auto live = question->runtime.lock();
  if (live == nullptr) return;
  Future<Verdict> verdict = Future<Verdict>::ready(absl::CancelledError("not asked"));
  try {
    CallScope scope;
    scope.runtime = live;
    CallScopeGuard guard(std::move(scope));
    verdict = other.with({.timeout = absl::InfiniteDuration()})
                  .rpc_async(&OptimizerShard::inquire, question->step);
  } catch (const RpcError& refused) {
    verdict = Future<Verdict>::ready(refused.status());
  }
  verdict.state()->on_complete_inline([question, verdict, other = std::move(other)] {
    const absl::StatusOr<Verdict>& result = verdict.result();
    const auto live = question->runtime.lock();
    if (live == nullptr) return;
    if (!result.ok() && is_live(*live, other.owner()) && !is_rref_lost(result.status())) {
      // It lives and has not said: perhaps it applied the step.
      Clock& clock = live->clock();
      clock.call_at(clock.now() + kLook, [question, other] {
        const auto live = question->runtime.lock();
        if (live == nullptr) return;
        live->executor().schedule([question, other] { ask(question, other); });
      });
      return;
    }
    if (result.ok() && result->outcome == StepOutcome::kApplied) {
      question->applied = true;
      // At once: who asks this owner must hear of it, and another answer may never come.
      live->executor().schedule([question, clip = result->clip] {
        report(question->step, question->self->stepper_->commit_fenced(question->step, clip));
      });
    }
    answered(question);
  });
}

void OptimizerShard::answered(const std::shared_ptr<Question>& question) {
  if (question->open.fetch_sub(1) != 1 || question->applied) return;
  const auto live = question->runtime.lock();
  if (live == nullptr) return;
  live->executor().schedule(
      [question] { report(question->step, question->self->stepper_->abort(question->step)); });
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
  if (shared_name.empty()) return std::make_shared<OptimizerShard>(make());
  auto stepper = std::static_pointer_cast<ShardStepper>(set.shared(shared_name, make));
  if (stepper->mode() != mode || !alike(stepper->groups(), placed)) {
    throw RpcError(absl::FailedPreconditionError(
        absl::StrCat("the optimizer ", shared_name, " has another mode, other groups or options")));
  }
  return std::make_shared<OptimizerShard>(std::move(stepper));
}

}  // namespace internal

std::shared_ptr<ParameterSet> leaves_as_set(std::vector<RRef<at::Tensor>> leaves) {
  std::vector<NamedParameter> parameters;
  for (size_t i = 0; i < leaves.size(); ++i) {
    parameters.push_back({absl::StrCat("parameter", i), leaves[i].local_value()});
  }
  return std::make_shared<ParameterSet>(std::move(parameters), ParameterSet::Reading::kLeaves);
}

}  // namespace weft
