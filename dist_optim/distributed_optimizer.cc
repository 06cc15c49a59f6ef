#include "weft/dist_optim/distributed_optimizer.h"

#include <algorithm>
#include <atomic>
#include <cmath>
#include <map>
#include <stdexcept>

#include <ATen/ops/full.h>

#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "weft/base/log.h"
#include "weft/base/mutex.h"
#include "weft/base/status.h"
#include "weft/dist_optim/internal/step_answers.h"
#include "weft/rpc/internal/user_call.h"

namespace weft {
namespace {

using internal::insist;
using internal::OptimizerShard;
using internal::Results;
using internal::ShardGroup;
using internal::StepId;
using internal::StepOutcome;
using internal::StepRequest;
using internal::StepSummary;
using internal::StepUpdate;
using internal::Verdict;
using internal::when_all;

// Optimizers of one process need distinct numbers only within one life of one worker.
uint64_t next_number() {
  static std::atomic<uint64_t> last{0};
  return ++last;
}

// How long step() waits for owners that live and do not say that they have applied it.
constexpr absl::Duration kDecisionWait = absl::Seconds(60);

}  // namespace

struct DistributedOptimizerBase::Core : std::enable_shared_from_this<Core> {
  struct Shard {
    RRef<OptimizerShard> rref;
    std::vector<size_t> groups;  // of this optimizer, in the shard's order
  };
  struct Step {
    Step(const StepOptions& step_options, Executor* executor)
        : options(step_options), scope(CallScope::current()), promise(executor) {}
    StepRequest request;  // but for the learning rates
    std::vector<double> rates;
    StepOptions options;
    CallScope scope;  // the context's
    StepResult result;
    double norm2 = 0;
    std::vector<size_t> prepared;  // places of shards
    bool committed = false;        // that is the decision, whoever has carried it out
    std::optional<TimerId> late = {};
    std::atomic<bool> told{false};
    Promise<StepResult> promise;

    // The caller waits no longer; what was not told yet is.
    void tell(StepResult outcome) {
      if (!told.exchange(true)) promise.set(std::move(outcome));
    }
  };
  using StepPtr = std::shared_ptr<Step>;

  std::weak_ptr<RpcRuntime> runtime;  // weak: an optimizer may outlive its worker
  OptimizerId id;
  UpdateMode mode = UpdateMode::kLocked;
  std::vector<Shard> shards;
  mutable Mutex mutex;
  std::vector<double> rates ABSL_GUARDED_BY(mutex);
  LrSchedule schedule ABSL_GUARDED_BY(mutex) = constant_lr();
  int64_t finished ABSL_GUARDED_BY(mutex) = 0;
  uint64_t number ABSL_GUARDED_BY(mutex) = 0;
  bool stepping ABSL_GUARDED_BY(mutex) = false;
  bool met = false;  // the shards know, and so hold, each other

  ~Core();
  static Executor* executor(const Step& step) { return &step.scope.runtime->executor(); }
  // For decisions: neither the context's health nor what becomes of the handler that steps may stop
  // them half-way.
  static CallScope decision_scope(const Step& step) {
    CallScope scope = step.scope;
    scope.context = {};
    scope.deadline = kNever;
    scope.call_context = nullptr;
    return scope;
  }
  // Without a limit of its own: the owner has the decision, or is dead.
  template <class R, class... P, class Method>
  Future<R> decide(size_t shard, const Step& step, Timeout limit, Method method,
                   P... argument) const {
    return insist<R>(
        decision_scope(step), limit, [shard = shards[shard].rref, method, argument...] {
          return shard.with({.timeout = absl::InfiniteDuration()}).rpc_async(method, argument...);
        });
  }
  // The caller of step() hears of a decision that owners are slow to take; the step goes on.
  void wait_no_longer_than_limit(const StepPtr& step, const std::vector<size_t>& asked) const {
    const Timeout limit = step->options.timeout.or_else(kDecisionWait);
    if (step->late.has_value() || limit.infinite()) return;
    Clock& clock = step->scope.runtime->clock();
    step->late = clock.call_at(
        limit.deadline_from(clock.now()), [self = shared_from_this(), step, asked, limit] {
          StepResult result;
          result.outcome = StepResult::Outcome::kDataLoss;
          result.number = step->request.step.number;
          const std::string span = absl::FormatDuration(absl::FromChrono(limit.limit()));
          result.status = self->unknown_at(asked, *step, absl::StrCat("no answer within ", span));
          step->tell(std::move(result));
        });
  }
  auto call(size_t shard, const StepPtr& step) const {
    return shards[shard].rref.with({.timeout = step->options.timeout});
  }
  StepUpdate update_for(size_t shard, const Step& step) const {
    StepUpdate update;
    for (const size_t group : shards[shard].groups) {
      update.learning_rates.push_back(step.rates[group]);
    }
    update.clip = step.result.clip;
    return update;
  }
  StepRequest request_for(size_t shard, const Step& step) const {
    StepRequest request = step.request;
    request.update = update_for(shard, step);
    request.max_norm = step.options.max_norm;
    request.others_norm2 = step.norm2;
    return request;
  }

  Future<StepResult> start(const ContextId& context, StepOptions options);
  absl::Status begin(Step& step);
  void prepare(StepPtr step);
  void decide_at(size_t last, StepPtr step);
  void ask(size_t last, StepPtr step, absl::Status failure);
  absl::Status unknown_at(const std::vector<size_t>& asked, const Step& step,
                          const std::string& why) const;
  void commit(StepPtr step);
  void abort(StepPtr step, absl::Status why);
  void apply(StepPtr step);
  void end(const StepPtr& step);
};

Future<StepResult> DistributedOptimizerBase::Core::start(const ContextId& context,
                                                         StepOptions options) {
  const std::shared_ptr<RpcRuntime> worker = runtime.lock();
  if (worker == nullptr) {
    return Future<StepResult>::ready(
        with_ran(absl::FailedPreconditionError("the optimizer's worker has ended"), Ran::kNo));
  }
  auto step = std::make_shared<Step>(options, &worker->executor());
  Future<StepResult> future = step->promise.future();
  step->scope.runtime = worker;
  step->scope.context = context;
  if (absl::Status refused = begin(*step); !refused.ok()) {
    step->result.outcome = StepResult::Outcome::kNotApplied;
    step->result.status = with_ran(std::move(refused), Ran::kNo);
    step->tell(step->result);
    return future;
  }
  step->request.step = {id, step->result.number};
  step->request.context = context;
  if (mode == UpdateMode::kHogwild) {
    apply(std::move(step));
  } else {
    prepare(std::move(step));
  }
  return future;
}

// Takes this optimizer for a step and gives the step its number and learning rates.
absl::Status DistributedOptimizerBase::Core::begin(Step& step) {
  if (!(step.options.max_norm >= 0)) {
    return absl::InvalidArgumentError(
        absl::StrCat("max_norm = ", step.options.max_norm, " is not 0 or above"));
  }
  if (mode == UpdateMode::kHogwild && step.options.max_norm > 0) {
    return absl::InvalidArgumentError(
        absl::StrCat("max_norm = ", step.options.max_norm,
                     " in mode hogwild, where no owner knows the others' gradients"));
  }
  LrSchedule factor_of;
  int64_t done = 0;
  {
    MutexLock lock(mutex);
    if (stepping) return absl::FailedPreconditionError("a step of this optimizer is under way");
    factor_of = schedule;
    step.rates.reserve(rates.size());
    done = finished;
    stepping = true;
  }
  double factor = 1;
  absl::Status status = prepend("the learning-rate schedule failed: ",
                                internal::run_user_code([&] { factor = factor_of(done); }));
  MutexLock lock(mutex);
  for (const double base : rates) {
    const double rate = step.options.lr.value_or(base * factor);
    if (status.ok() && !(rate >= 0 && std::isfinite(rate))) {
      status = absl::InvalidArgumentError(
          absl::StrCat("a learning rate of ", rate, " is not 0 or above, and finite"));
    }
    step.rates.push_back(rate);
  }
  stepping = status.ok();
  if (stepping) step.result.number = ++number;
  return status;
}

// All shards but the last one if that is the only remote one: then PREPARE and COMMIT are one
// message to it.
void DistributedOptimizerBase::Core::prepare(StepPtr step) {
  std::vector<size_t> remote, local;
  for (size_t i = 0; i < shards.size(); ++i) {
    (shards[i].rref.is_owner() ? local : remote).push_back(i);
  }
  std::optional<size_t> last;
  if (remote.size() == 1) last = remote.front();
  if (shards.size() == 1) last = 0;
  std::vector<Future<double>> answers;
  CallScopeGuard guard(step->scope);
  for (size_t i = 0; i < shards.size(); ++i) {
    if (last == i) continue;
    step->prepared.push_back(i);
    answers.push_back(call(i, step).rpc_async(&OptimizerShard::prepare, request_for(i, *step)));
  }
  when_all(executor(*step), std::move(answers),
           [self = shared_from_this(), step, last](Results<double> norms) mutable {
             for (size_t i = 0; i < norms.size(); ++i) {
               if (!norms[i].ok()) {
                 self->abort(std::move(step), norms[i].status());
                 return;
               }
               step->norm2 += *norms[i];
             }
             if (last.has_value()) {
               self->decide_at(*last, std::move(step));
             } else {
               step->result.clip = internal::clip_factor(step->norm2, step->options.max_norm);
               step->result.gradient_norm = std::sqrt(step->norm2);
               self->commit(std::move(step));
             }
           });
}

void DistributedOptimizerBase::Core::decide_at(size_t last, StepPtr step) {
  CallScopeGuard guard(step->scope);
  std::vector<Future<StepSummary>> answer;
  answer.push_back(call(last, step).rpc_async(&OptimizerShard::finish, request_for(last, *step)));
  when_all(executor(*step), std::move(answer),
           [self = shared_from_this(), step, last](Results<StepSummary> summary) mutable {
             if (!summary[0].ok()) {
               self->ask(last, std::move(step), summary[0].status());
               return;
             }
             step->result.clip = summary[0]->clip;
             step->result.gradient_norm = std::sqrt(summary[0]->norm2);
             self->commit(std::move(step));
           });
}

// The answer to PREPARE and COMMIT is lost or a refusal: the owner says which, and from then on
// the step cannot be applied there any more.
void DistributedOptimizerBase::Core::ask(size_t last, StepPtr step, absl::Status failure) {
  if (ran_of(failure) == Ran::kNo) {
    abort(std::move(step), std::move(failure));
    return;
  }
  if (failure.code() == absl::StatusCode::kDataLoss) {
    step->result.outcome = StepResult::Outcome::kDataLoss;
    step->result.status = failure;
    abort(std::move(step), std::move(failure));
    return;
  }
  wait_no_longer_than_limit(step, {last});
  std::vector<Future<Verdict>> answer;
  answer.push_back(decide<Verdict>(last, *step, absl::InfiniteDuration(), &OptimizerShard::settle,
                                   step->request.step));
  when_all(executor(*step), std::move(answer),
           [self = shared_from_this(), step, last, failure](Results<Verdict> verdict) mutable {
             if (verdict[0].ok() && verdict[0]->outcome == StepOutcome::kApplied) {
               step->result.clip = verdict[0]->clip;
               step->result.gradient_norm = std::sqrt(step->norm2 + verdict[0]->norm2);
               self->commit(std::move(step));
               return;
             }
             // Aborted there, or that owner is dead and does not count.
             if (!verdict[0].ok() && verdict[0].status().code() != absl::StatusCode::kUnavailable) {
               step->result.outcome = StepResult::Outcome::kDataLoss;
               failure = self->unknown_at({last}, *step, failure.ToString());
             }
             self->abort(std::move(step), std::move(failure));
           });
}

absl::Status DistributedOptimizerBase::Core::unknown_at(const std::vector<size_t>& asked,
                                                        const Step& step,
                                                        const std::string& why) const {
  std::vector<std::string> owners;
  for (const size_t shard : asked) owners.push_back(shards[shard].rref.owner_name());
  return absl::DataLossError(absl::StrCat(step.request.step.to_string(),
                                          " is not known to be applied by ",
                                          absl::StrJoin(owners, ", "), ": ", why));
}

void DistributedOptimizerBase::Core::commit(StepPtr step) {
  step->committed = true;
  wait_no_longer_than_limit(step, step->prepared);
  std::vector<Future<void>> answers;
  for (const size_t i : step->prepared) {
    answers.push_back(decide<void>(i, *step, absl::InfiniteDuration(), &OptimizerShard::commit,
                                   step->request.step, update_for(i, *step)));
  }
  when_all(executor(*step), std::move(answers),
           [self = shared_from_this(), step](Results<void> answers) {
             for (size_t i = 0; i < answers.size(); ++i) {
               if (answers[i].ok()) continue;
               step->result.outcome = StepResult::Outcome::kDataLoss;
               step->result.status =
                   self->unknown_at({step->prepared[i]}, *step, answers[i].status().ToString());
             }
             self->end(step);
           });
}

void DistributedOptimizerBase::Core::abort(StepPtr step, absl::Status why) {
  if (step->result.outcome == StepResult::Outcome::kApplied) {
    step->result.outcome = StepResult::Outcome::kNotApplied;
  }
  step->result.status = std::move(why);
  std::vector<Future<void>> answers;
  for (const size_t i : step->prepared) {
    answers.push_back(decide<void>(i, *step, step->options.timeout.or_else(kDecisionWait),
                                   &OptimizerShard::abort, step->request.step));
  }
  // An abort that is lost harms nobody: the next PREPARE gives the step up as well.
  when_all(executor(*step), std::move(answers),
           [self = shared_from_this(), step](const Results<void>&) { self->end(step); });
}

void DistributedOptimizerBase::Core::apply(StepPtr step) {
  CallScopeGuard guard(step->scope);
  std::vector<Future<void>> answers;
  for (size_t i = 0; i < shards.size(); ++i) {
    answers.push_back(call(i, step).rpc_async(&OptimizerShard::apply, request_for(i, *step)));
  }
  when_all(executor(*step), std::move(answers),
           [self = shared_from_this(), step](Results<void> answers) {
             std::string report;
             bool any_failed = false, any_applied = false;
             for (size_t i = 0; i < answers.size(); ++i) {
               const absl::Status& status = answers[i].status();
               const bool maybe =
                   !status.ok() && (ran_of(status) == Ran::kMaybe || absl::IsDataLoss(status));
               any_failed |= !status.ok();
               any_applied |= status.ok() || maybe;
               absl::StrAppend(&report, i == 0 ? "" : "; ", self->shards[i].rref.owner_name(), ": ",
                               status.ok() ? "applied"
                               : maybe     ? "maybe, "
                                           : "not applied, ",
                               status.ok() ? "" : status.ToString());
             }
             if (any_failed) {
               step->result.outcome =
                   any_applied ? StepResult::Outcome::kDataLoss : StepResult::Outcome::kNotApplied;
               step->result.status =
                   any_applied ? absl::DataLossError(report) : absl::AbortedError(report);
             }
             self->end(step);
           });
}

void DistributedOptimizerBase::Core::end(const StepPtr& step) {
  {
    MutexLock lock(mutex);
    stepping = false;
    if (step->committed || step->result.outcome == StepResult::Outcome::kApplied) ++finished;
  }
  if (step->late.has_value()) step->scope.runtime->clock().cancel(*step->late);
  step->tell(step->result);
}

DistributedOptimizerBase::DistributedOptimizerBase(std::vector<ParameterGroup> groups,
                                                   OptimizerOptions options)
    : core_(std::make_shared<Core>()) {
  absl::StatusOr<std::shared_ptr<RpcRuntime>> runtime = internal::current_runtime();
  if (!runtime.ok()) throw RpcError(runtime.status());
  core_->runtime = *runtime;
  core_->id = {(*runtime)->id(), next_number()};
  core_->mode = options.mode;
  // One shard per set, with its groups in their order.
  std::vector<std::pair<RRef<ParameterSet>, std::vector<ShardGroup>>> sets;
  for (size_t g = 0; g < groups.size(); ++g) {
    MutexLock lock(core_->mutex);
    core_->rates.push_back(learning_rate_of(groups[g].settings));
    for (const RRef<ParameterSet>& set : groups[g].sets) {
      size_t place = 0;
      while (place < sets.size() && !(sets[place].first == set)) ++place;
      if (place == sets.size()) {
        sets.emplace_back(set, std::vector<ShardGroup>());
        core_->shards.emplace_back();
      }
      sets[place].second.push_back({groups[g].names, groups[g].settings});
      core_->shards[place].groups.push_back(g);
    }
  }
  if (sets.empty()) throw std::invalid_argument("an optimizer without parameters");
  for (size_t i = 0; i < sets.size(); ++i) {
    core_->shards[i].rref = sets[i].first.remote(&internal::make_optimizer_shard, sets[i].second,
                                                 options.mode, options.shared_name);
  }
  // Shards that may be left prepared know whom to ask.
  if (options.mode == UpdateMode::kHogwild || sets.size() < 2) return;
  core_->met = true;
  for (size_t i = 0; i < sets.size(); ++i) {
    std::vector<RRef<OptimizerShard>> others;
    for (size_t j = 0; j < sets.size(); ++j) {
      if (j != i) others.push_back(core_->shards[j].rref);
    }
    core_->shards[i].rref.rpc_sync(&OptimizerShard::meet, core_->id.number, std::move(others));
  }
}

DistributedOptimizerBase::DistributedOptimizerBase(DistributedOptimizerBase&&) noexcept = default;
DistributedOptimizerBase& DistributedOptimizerBase::operator=(DistributedOptimizerBase&&) noexcept =
    default;

DistributedOptimizerBase::~DistributedOptimizerBase() = default;

DistributedOptimizerBase::Core::~Core() {
  const std::shared_ptr<RpcRuntime> worker = runtime.lock();
  if (!met || worker == nullptr) return;
  CallScope scope;
  scope.runtime = worker;
  CallScopeGuard guard(std::move(scope));
  try {
    for (const Shard& shard : shards) {
      (void)insist<void>(CallScope::current(), absl::InfiniteDuration(), [shard = shard.rref] {
        return shard.with({.timeout = absl::InfiniteDuration()}).rpc_async(&OptimizerShard::part);
      });
    }
  } catch (const std::exception& error) {
    log_warning("an optimizer ended without telling its owners: ", error.what());
  }
}

Future<StepResult> DistributedOptimizerBase::step_async(const dist_autograd::Context& context,
                                                        StepOptions options) {
  return core_->start(context.id(), options);
}

StepResult DistributedOptimizerBase::step(const dist_autograd::Context& context,
                                          StepOptions options) {
  StepResult result = step_async(context, options).wait();
  if (result.outcome == StepResult::Outcome::kApplied) return result;
  const std::string step = result.number == 0 ? "the step" : absl::StrCat("step ", result.number);
  throw RpcError(prepend(result.outcome == StepResult::Outcome::kNotApplied
                             ? absl::StrCat(step, " was not applied: ")
                             : absl::StrCat(step, " is lost on an owner: "),
                         result.status));
}

void DistributedOptimizerBase::set_learning_rate(size_t group, double lr) {
  MutexLock lock(core_->mutex);
  core_->rates.at(group) = lr;
}
double DistributedOptimizerBase::learning_rate(size_t group) const {
  MutexLock lock(core_->mutex);
  return core_->rates.at(group);
}
void DistributedOptimizerBase::set_schedule(LrSchedule schedule) {
  MutexLock lock(core_->mutex);
  core_->schedule = std::move(schedule);
}
int64_t DistributedOptimizerBase::finished_steps() const {
  MutexLock lock(core_->mutex);
  return core_->finished;
}

TensorMap DistributedOptimizerBase::state_dict() const {
  TensorMap state;
  for (size_t i = 0; i < core_->shards.size(); ++i) {
    for (auto& [name, tensor] : core_->shards[i].rref.rpc_sync(&OptimizerShard::state)) {
      state[absl::StrCat(i, "/", name)] = tensor;
    }
  }
  state["steps"] = at::full({}, finished_steps(), at::TensorOptions().dtype(at::kLong));
  return state;
}

void DistributedOptimizerBase::load_state_dict(const TensorMap& state) {
  const auto steps = state.find("steps");
  if (steps == state.end() || !steps->second.defined() || steps->second.numel() != 1 ||
      steps->second.scalar_type() != at::kLong || steps->second.item<int64_t>() < 0) {
    throw RpcError(
        absl::InvalidArgumentError("the optimizer's state lacks \"steps\", one int64 from 0"));
  }
  const int64_t finished = steps->second.item<int64_t>();
  std::vector<TensorMap> parts(core_->shards.size());
  for (const auto& [name, tensor] : state) {
    if (name == "steps") continue;
    const size_t slash = std::min(name.find('/'), name.size());
    size_t place = 0;
    if (!absl::SimpleAtoi(name.substr(0, slash), &place) || place >= parts.size() ||
        absl::StrCat(place) != name.substr(0, slash)) {
      throw RpcError(absl::InvalidArgumentError(absl::StrCat(
          "the state has ", name, ", and the optimizer has ", parts.size(), " parameter sets")));
    }
    parts[place][name.substr(std::min(slash + 1, name.size()))] = tensor;
  }
  // What can be refused is refused before anything changes.
  if (parts.size() > 1) {
    for (size_t i = 0; i < parts.size(); ++i) {
      core_->shards[i].rref.rpc_sync(&OptimizerShard::check_state, parts[i]);
    }
  }
  for (size_t i = 0; i < parts.size(); ++i) {
    core_->shards[i].rref.rpc_sync(&OptimizerShard::load_state, std::move(parts[i]));
  }
  MutexLock lock(core_->mutex);
  core_->finished = finished;
}

namespace internal {

std::vector<RRef<ParameterSet>> group_by_owner(const std::vector<RRef<at::Tensor>>& leaves) {
  std::map<WorkerId, std::vector<RRef<at::Tensor>>> by_owner;
  for (const RRef<at::Tensor>& leaf : leaves) by_owner[leaf.owner()].push_back(leaf);
  std::vector<RRef<ParameterSet>> sets;
  for (auto& [owner, group] : by_owner) {
    sets.push_back(remote(owner, &leaves_as_set, std::move(group)));
  }
  return sets;
}

}  // namespace internal
}  // namespace weft
