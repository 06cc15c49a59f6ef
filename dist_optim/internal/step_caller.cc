#include "weft/dist_optim/internal/step_caller.h"

#include <cmath>
#include <utility>
#include <variant>

#include "absl/strings/str_cat.h"
#include "weft/base/faults/fail_point.h"
#include "weft/base/log.h"
#include "weft/base/overloaded.h"
#include "weft/base/status.h"
#include "weft/dist_optim/internal/insist.h"
#include "weft/rpc/user_call.h"

namespace weft::dist_optim_internal {
namespace {

// If StepOptions::timeout is not set, step() waits this long for owners that are live and do not
// answer COMMIT or SETTLE.
constexpr absl::Duration kDecisionWait = absl::Seconds(60);

StepCallerCore::Options core_options(const StepCaller::Options& options) {
  StepCallerCore::Options core;
  core.optimizer = options.id;
  core.hogwild = options.mode == UpdateMode::kHogwild;
  core.sequence = options.sequence;
  for (const StepCaller::Shard& shard : options.shards) {
    core.owners.push_back({shard.rref.owner_name(), shard.rref.is_owner()});
  }
  return core;
}

template <class R, class Send>
Future<R> sent(Send send) {
  try {
    return send();
  } catch (const RpcError& refused) {
    return Future<R>::ready(refused.status());
  }
}

// The scope of a decision. A failed context, or the deadline and end of the handler that called
// step(), must not stop a decision half-way.
CallScope decision_scope(CallScope scope) {
  scope.context = {};
  scope.deadline = kNever;
  scope.call_context = nullptr;
  return scope;
}

}  // namespace

struct StepCaller::Step {
  Step(const StepOptions& step_options, Executor* executor)
      : options(step_options), scope(CallScope::current()), promise(executor) {}
  const StepOptions options;
  CallScope scope;  // with the step's autograd context
  StepId id;        // set once the core has given it a number
  std::vector<double> rates;
  std::optional<TimerId> late;
  Promise<StepResult> promise;
};

StepCaller::StepCaller(Options options)
    : options_(std::move(options)), core_(core_options(options_)), rates_(options_.rates) {}

std::vector<Future<void>> StepCaller::introduce_shards() {
  for (size_t i = 0; i < size() && !options_.sequence.empty(); ++i) {
    Future<SequenceStanding> answer =
        shard(i).rpc_async(&OptimizerShard::join, options_.id.number, options_.sequence);
    MutexLock lock(mutex_);
    standings_.emplace(i, std::move(answer));
  }
  std::vector<Future<void>> met;
  if (options_.mode == UpdateMode::kHogwild || size() < 2) return met;
  introduced_ = true;
  for (size_t i = 0; i < size(); ++i) {
    std::vector<RRef<OptimizerShard>> others;
    for (size_t j = 0; j < size(); ++j) {
      if (j != i) others.push_back(shard(j));
    }
    met.push_back(shard(i).rpc_async(&OptimizerShard::meet, options_.id.number, std::move(others)));
  }
  return met;
}

StepCaller::~StepCaller() {
  const std::shared_ptr<RpcRuntime> worker = options_.runtime.lock();
  if (!introduced_ || worker == nullptr) return;
  CallScope scope;
  scope.runtime = worker;
  CallScopeGuard guard(std::move(scope));
  try {
    for (const Shard& one : options_.shards) {
      (void)insist<void>(CallScope::current(), absl::InfiniteDuration(), [shard = one.rref] {
        return shard.with({.timeout = absl::InfiniteDuration()}).rpc_async(&OptimizerShard::part);
      });
    }
  } catch (const std::exception& error) {
    log_warning("an optimizer ended without telling its owners: ", error.what());
  }
}

Future<StepResult> StepCaller::start(const ContextId& context, const StepOptions& options) {
  const std::shared_ptr<RpcRuntime> worker = options_.runtime.lock();
  if (worker == nullptr) {
    return Future<StepResult>::ready(
        with_ran(absl::FailedPreconditionError("the optimizer's worker has ended"), Ran::kNo));
  }
  const auto step = std::make_shared<Step>(options, &worker->executor());
  step->scope.runtime = worker;
  step->scope.context = context;
  CallerActions actions;
  absl::Status refused = check(*step);
  if (refused.ok()) {
    MutexLock lock(mutex_);
    checking_ = false;
    refused = core_.begin(options.max_norm, actions);
    if (refused.ok()) current_ = step.get();
  }
  if (!refused.ok()) {
    StepResult result;
    result.outcome = StepResult::Outcome::kNotApplied;
    result.status = with_ran(std::move(refused), Ran::kNo);
    step->promise.set(std::move(result));
  }
  Future<StepResult> future = step->promise.future();
  carry_out(step, std::move(actions));
  return future;
}

// Reserves this optimizer for the step if the result is OK, and sets the step's learning rates.
absl::Status StepCaller::check(Step& step) {
  if (!(step.options.max_norm >= 0)) {
    return absl::InvalidArgumentError(
        absl::StrCat("max_norm = ", step.options.max_norm, " is not 0 or above"));
  }
  if (options_.mode == UpdateMode::kHogwild && step.options.max_norm > 0) {
    return absl::InvalidArgumentError(
        absl::StrCat("max_norm = ", step.options.max_norm,
                     " in mode hogwild, where no owner knows the others' gradients"));
  }
  LrSchedule factor_of;
  int64_t done = 0;
  {
    MutexLock lock(mutex_);
    if (checking_ || core_.stepping()) {
      return absl::FailedPreconditionError("a step of this optimizer is under way");
    }
    factor_of = schedule_;
    step.rates.reserve(rates_.size());
    done = core_.finished();
    checking_ = true;
  }
  double factor = 1;
  absl::Status status = prepend("the learning-rate schedule failed: ",
                                rpc_internal::run_user_code([&] { factor = factor_of(done); }));
  MutexLock lock(mutex_);
  for (const double base : rates_) {
    const double rate = step.options.lr.value_or(base * factor);
    if (status.ok() && !(rate >= 0 && std::isfinite(rate))) {
      status = absl::InvalidArgumentError(
          absl::StrCat("a learning rate of ", rate, " is not 0 or above, and finite"));
    }
    step.rates.push_back(rate);
  }
  checking_ = status.ok();
  return status;
}

// ---- messages

template <class R, class Event>
void StepCaller::await(const StepPtr& step, const Future<R>& answer, Event event) {
  answer.state()->on_complete_inline([self = shared_from_this(), step, answer, event] {
    CallerActions actions;
    {
      MutexLock lock(self->mutex_);
      event(self->core_, answer.result(), actions);
    }
    if (actions.empty()) return;
    step->scope.runtime->executor().schedule([self, step, actions = std::move(actions)]() mutable {
      self->carry_out(step, std::move(actions));
    });
  });
}

// Sends a message within the step's context and timeout.
template <class R, class Argument, class Method, class Event>
void StepCaller::call(size_t place, const StepPtr& step, Method method, Argument argument,
                      Event event) {
  CallScopeGuard guard(step->scope);
  await(step, sent<R>([&] {
          return shard(place)
              .with({.timeout = step->options.timeout})
              .rpc_async(method, std::move(argument));
        }),
        event);
}

// Sends a decision. The call itself has no timeout: it completes when the owner has answered or is
// dead.
template <class R, class Method, class Event, class... Argument>
void StepCaller::decide(size_t place, const StepPtr& step, Timeout limit, Method method,
                        Event event, Argument... argument) {
  await(
      step,
      insist<R>(
          decision_scope(step->scope), limit,
          [shard = shard(place), method, argument...] {
            return shard.with({.timeout = absl::InfiniteDuration()}).rpc_async(method, argument...);
          }),
      event);
}

StepUpdate StepCaller::update_for(size_t place, const Step& step, double clip) const {
  StepUpdate update;
  for (const size_t group : options_.shards[place].groups) {
    update.learning_rates.push_back(step.rates[group]);
  }
  update.clip = clip;
  return update;
}

StepRequest StepCaller::request_for(size_t place, Step& step, double others_norm2) {
  if (step.id.number == 0) {
    MutexLock lock(mutex_);
    step.id = core_.step();
  }
  StepRequest request;
  request.step = step.id;
  request.context = step.scope.context;
  request.update = update_for(place, step, 1);
  request.max_norm = step.options.max_norm;
  request.others_norm2 = others_norm2;
  return request;
}

// ---- what the core asks for

void StepCaller::carry_out(const StepPtr& step, CallerActions actions) {
  for (const CallerAction& action : actions) carry_out(step, action);
}

void StepCaller::carry_out(const StepPtr& step, const CallerAction& action) {
  using Core = StepCallerCore;
  const auto join = [&](const step::Join& asked) {
    const size_t i = asked.owner;
    await(step, standing(i, *step),
          [i](Core& core, const auto& answer, auto& out) { core.on_joined(i, answer, out); });
  };
  const auto prepare = [&](const step::Prepare& asked) {
    const size_t i = asked.owner;
    call<double>(i, step, &OptimizerShard::prepare, request_for(i, *step, 0),
                 [i](Core& core, const auto& norm, auto& out) { core.on_prepared(i, norm, out); });
  };
  const auto finish = [&](const step::Finish& asked) {
    const size_t i = asked.owner;
    call<StepSummary>(
        i, step, &OptimizerShard::finish, request_for(i, *step, asked.others_norm2),
        [i](Core& core, const auto& answer, auto& out) { core.on_finished(i, answer, out); });
  };
  const auto apply_alone = [&](const step::ApplyAlone& asked) {
    const size_t i = asked.owner;
    call<StepDurable>(
        i, step, &OptimizerShard::apply, request_for(i, *step, 0),
        [i](Core& core, const auto& answer, auto& out) { core.on_applied_alone(i, answer, out); });
  };
  const auto settle = [&](const step::Settle& asked) {
    const size_t i = asked.owner;
    decide<StepDecision>(
        i, step, absl::InfiniteDuration(), &OptimizerShard::settle,
        [i](Core& core, const auto& answer, auto& out) { core.on_settled(i, answer, out); },
        step->id);
  };
  const auto commit = [&](const step::Commit& asked) {
    const size_t i = asked.owner;
    WEFT_FAIL_POINT("step.prepared");
    decide<StepDurable>(
        i, step, absl::InfiniteDuration(), &OptimizerShard::commit,
        [i](Core& core, const auto& answer, auto& out) { core.on_committed(i, answer, out); },
        step->id, update_for(i, *step, asked.clip));
    WEFT_FAIL_POINT("step.one.told");
  };
  const auto abort = [&](const step::Abort& asked) {
    const size_t i = asked.owner;
    decide<void>(
        i, step, step->options.timeout.or_else(kDecisionWait), &OptimizerShard::abort,
        [i](Core& core, const auto&, auto& out) { core.on_aborted(i, out); }, step->id);
  };
  const auto wait = [&](const step::LimitWait&) { limit_wait(step); };
  const auto tell = [&](const step::Tell& asked) {
    WEFT_FAIL_POINT("step.committed");
    step->promise.set(asked.result);
  };
  const auto end = [&](const step::End&) {
    if (step->late.has_value()) step->scope.runtime->clock().cancel(*step->late);
  };
  std::visit(Overloaded{join, prepare, finish, apply_alone, settle, commit, abort, wait, tell, end},
             action);
}

Future<SequenceStanding> StepCaller::standing(size_t place, const Step& step) {
  {
    MutexLock lock(mutex_);
    const auto asked = standings_.extract(place);
    if (!asked.empty()) return asked.mapped();
  }
  CallScopeGuard guard(decision_scope(step.scope));
  return sent<SequenceStanding>([&] {
    return shard(place)
        .with({.timeout = step.options.timeout})
        .rpc_async(&OptimizerShard::join, options_.id.number, options_.sequence);
  });
}

// If owners are slow to answer a decision, the program is told after the limit. The step goes on.
void StepCaller::limit_wait(const StepPtr& step) {
  const Timeout limit = step->options.timeout.or_else(kDecisionWait);
  if (limit.infinite()) return;
  Clock& clock = step->scope.runtime->clock();
  step->late =
      clock.call_at(limit.deadline_from(clock.now()), [self = shared_from_this(), step, limit] {
        const std::string span = absl::FormatDuration(absl::FromChrono(limit.limit()));
        CallerActions actions;
        {
          MutexLock lock(self->mutex_);
          if (self->current_ != step.get()) return;  // that step is over
          self->core_.on_late(absl::StrCat("no answer within ", span), actions);
        }
        self->carry_out(step, std::move(actions));
      });
}

// ---- between steps

void StepCaller::set_learning_rate(size_t group, double lr) {
  MutexLock lock(mutex_);
  rates_.at(group) = lr;
}
double StepCaller::learning_rate(size_t group) const {
  MutexLock lock(mutex_);
  return rates_.at(group);
}
void StepCaller::set_schedule(LrSchedule schedule) {
  MutexLock lock(mutex_);
  schedule_ = std::move(schedule);
}
int64_t StepCaller::finished() const {
  MutexLock lock(mutex_);
  return core_.finished();
}
void StepCaller::set_finished(int64_t steps) {
  MutexLock lock(mutex_);
  core_.set_finished(steps);
}
absl::Status StepCaller::resumed(uint64_t number) {
  MutexLock lock(mutex_);
  return core_.resumed(number);
}

}  // namespace weft::dist_optim_internal
