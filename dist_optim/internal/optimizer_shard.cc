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
  WEFT_RETURN_IF_ERROR(driver->lost_commit(context));
  for (size_t i = 0; i < read.size(); ++i) {
    WEFT_ASSIGN_OR_RETURN(result[i], driver->gradient(context, read[i]));
  }
  return result;
}

absl::StatusOr<double> OptimizerShard::prepare(CallContext&, StepRequest request) {
  WEFT_ASSIGN_OR_RETURN(std::vector<at::Tensor> found, gradients(request.context));
  return stepper_->prepare(request.step, std::move(found));
}

absl::StatusOr<StepSummary> OptimizerShard::finish(StepRequest request) {
  WEFT_ASSIGN_OR_RETURN(std::vector<at::Tensor> found, gradients(request.context));
  WEFT_ASSIGN_OR_RETURN(const double own, stepper_->prepare(request.step, std::move(found)));
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

Verdict OptimizerShard::settle(StepId step) {
  Verdict verdict;
  verdict.outcome = stepper_->settle(step);
  if (verdict.outcome == StepOutcome::kApplied) {
    absl::StatusOr<StepUpdate> update = stepper_->applied_update(step);
    if (update.ok()) verdict.update = *std::move(update);
  }
  return verdict;
}

void OptimizerShard::meet(CallContext& caller, std::vector<RRef<OptimizerShard>> others) {
  const absl::StatusOr<std::shared_ptr<RpcRuntime>> runtime = current_runtime();
  if (!runtime.ok()) throw RpcError(runtime.status());
  bool start = false;
  {
    MutexLock lock(mutex_);
    caller_ = caller.caller();
    others_.swap(others);
    start = !std::exchange(watching_, true);
  }
  if (start) watch(*runtime);
}

void OptimizerShard::part() {
  std::vector<RRef<OptimizerShard>> others;  // let go outside the lock
  MutexLock lock(mutex_);
  others.swap(others_);
  caller_ = {};
}

void OptimizerShard::watch(std::shared_ptr<RpcRuntime> runtime) {
  Clock& clock = runtime->clock();
  clock.call_at(clock.now() + kLook,
                [weak = weak_from_this(), weak_runtime = std::weak_ptr<RpcRuntime>(runtime)] {
                  const auto self = weak.lock();
                  const auto live = weak_runtime.lock();
                  if (self == nullptr || live == nullptr) return;
                  WorkerId caller;
                  {
                    MutexLock lock(self->mutex_);
                    caller = self->caller_;
                    if (!caller.valid()) {
                      self->watching_ = false;
                      return;
                    }
                  }
                  if (is_live(*live, caller)) {
                    self->watch(live);
                    return;
                  }
                  live->executor().schedule([self, caller] { self->caller_died(caller); });
                });
}

void OptimizerShard::caller_died(WorkerId caller) {
  std::vector<RRef<OptimizerShard>> others;
  {
    MutexLock lock(mutex_);
    others = others_;
    watching_ = false;
  }
  for (const StepId& step : stepper_->undecided()) {
    if (step.optimizer.creator == caller) resolve(step, others);
  }
  part();
}

void OptimizerShard::resolve(const StepId& step, const std::vector<RRef<OptimizerShard>>& others) {
  struct Question {
    std::atomic<size_t> open{0};
    Mutex mutex;
    std::optional<StepUpdate> applied ABSL_GUARDED_BY(mutex);
  };
  auto question = std::make_shared<Question>();
  question->open = others.size() + 1;
  const auto answered = [self = shared_from_this(), question, step] {
    if (question->open.fetch_sub(1) != 1) return;
    std::optional<StepUpdate> update;
    {
      MutexLock lock(question->mutex);
      update = question->applied;
    }
    const absl::Status status =
        update.has_value() ? self->stepper_->commit(step, *update) : self->stepper_->abort(step);
    if (!status.ok()) {
      log_warning("weft: ", step.to_string(), " of a dead caller: ", status.ToString());
    }
  };
  for (const RRef<OptimizerShard>& other : others) {
    // Without a limit: the answer comes, or the other owner is dead and does not count.
    Future<Verdict> verdict =
        other.with({.timeout = absl::InfiniteDuration()}).rpc_async(&OptimizerShard::settle, step);
    verdict.state()->on_complete_inline([verdict, question, answered] {
      const absl::StatusOr<Verdict>& result = verdict.result();
      if (result.ok() && result->outcome == StepOutcome::kApplied) {
        MutexLock lock(question->mutex);
        question->applied = result->update;
      }
      answered();
    });
  }
  answered();
}

std::shared_ptr<OptimizerShard> make_optimizer_shard(ParameterSet& set,
                                                     std::vector<ShardGroup> groups,
                                                     UpdateMode mode, std::string shared_name) {
  const auto make = [&]() -> std::shared_ptr<ShardStepper> {
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
    }
    absl::StatusOr<std::shared_ptr<ShardStepper>> stepper =
        ShardStepper::make(set.shared_from_this(), std::move(placed), mode);
    if (!stepper.ok()) throw RpcError(stepper.status());
    return *std::move(stepper);
  };
  if (shared_name.empty()) return std::make_shared<OptimizerShard>(make());
  auto stepper = std::static_pointer_cast<ShardStepper>(set.shared(shared_name, make));
  if (stepper->mode() != mode) {
    throw RpcError(absl::FailedPreconditionError(
        absl::StrCat("the optimizer ", shared_name, " has another mode")));
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
