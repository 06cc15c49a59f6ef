#include "weft/dist_optim/internal/shard_stepper.h"

#include <cmath>
#include <exception>
#include <optional>
#include <set>
#include <utility>
#include <variant>

#include <ATen/ops/linalg_vector_norm.h>
#include <ATen/ops/mul.h>
#include <c10/core/GradMode.h>
#include <torch/optim/optimizer.h>

#include "absl/strings/str_cat.h"
#include "weft/base/faults/fail_point.h"
#include "weft/base/log.h"
#include "weft/base/overloaded.h"
#include "weft/base/status.h"
#include "weft/dist_autograd/graph/engine_scope.h"
#include "weft/dist_optim/internal/optimizer_state.h"

namespace weft::dist_optim_internal {
namespace {

double squared_norm(const at::Tensor& gradient) {
  const at::Tensor values = gradient.is_sparse() ? gradient.coalesce().values() : gradient;
  // Half precision cannot represent the norm of some finite values, so the norm is a float.
  const auto type = c10::elementSize(values.scalar_type()) < 4 ? std::optional(at::kFloat)
                                                               : std::optional<at::ScalarType>();
  const double norm = at::linalg_vector_norm(values, 2, std::nullopt, false, type).item<double>();
  return norm * norm;
}

bool has_momentum(const OptimizerSettings& settings) {
  const auto* sgd = std::get_if<SgdSettings>(&settings);
  return sgd != nullptr && sgd->momentum != 0;
}

// LibTorch's optimizers refuse sparse gradients too, but only in the middle of a step.
bool takes_sparse(const OptimizerSettings& settings) {
  if (const auto* s = std::get_if<SgdSettings>(&settings)) return s->weight_decay == 0;
  if (const auto* s = std::get_if<AdagradSettings>(&settings)) return s->weight_decay == 0;
  return false;
}

}  // namespace

absl::StatusOr<std::shared_ptr<ShardStepper>> ShardStepper::make(std::shared_ptr<ParameterSet> set,
                                                                 std::vector<Group> groups,
                                                                 UpdateMode mode) {
  std::vector<bool> taken(set->size(), false);
  for (const Group& group : groups) {
    for (const size_t place : group.parameters) {
      if (place >= taken.size() || taken[place]) {
        return absl::InvalidArgumentError(
            place < taken.size()
                ? absl::StrCat("parameter ", set->names()[place], " is in two groups")
                : absl::StrCat("there is no parameter ", place));
      }
      taken[place] = true;
    }
  }
  std::shared_ptr<ShardStepper> stepper(new ShardStepper(set, std::move(groups), mode));
  std::vector<TorchGroup> torch_groups;
  for (const Group& group : stepper->groups_) {
    TorchGroup& torch_group = torch_groups.emplace_back();
    torch_group.settings = group.settings;
    for (const size_t place : group.parameters) {
      torch_group.parameters.push_back(stepper->handles_[place]);
    }
  }
  MutexLock lock(stepper->mutex_);
  WEFT_ASSIGN_OR_RETURN(stepper->optimizer_, make_torch_optimizer(torch_groups));
  WEFT_RETURN_IF_ERROR(set->fix_mode(mode));
  return stepper;
}

ShardStepper::ShardStepper(std::shared_ptr<ParameterSet> set, std::vector<Group> groups,
                           UpdateMode mode)
    : set_(std::move(set)), groups_(std::move(groups)), mode_(mode) {
  group_of_.assign(set_->size(), groups_.size());
  for (size_t g = 0; g < groups_.size(); ++g) {
    for (const size_t place : groups_[g].parameters) group_of_[place] = g;
  }
  for (const at::Tensor& live : set_->live()) {
    // In mode hogwild steppers run at the same time, so each has its own handles for its gradients.
    handles_.push_back(mode_ == UpdateMode::kHogwild ? live.detach() : live);
  }
  spares_.resize(set_->size());
}

ShardStepper::~ShardStepper() = default;

absl::Status ShardStepper::check(const std::vector<at::Tensor>& gradients) const {
  if (gradients.size() != set_->size()) {
    return absl::InvalidArgumentError(
        absl::StrCat(gradients.size(), " gradients for ", set_->size(), " parameters"));
  }
  for (size_t place = 0; place < gradients.size(); ++place) {
    const at::Tensor& gradient = gradients[place];
    if (!gradient.defined()) continue;
    if (!set_->kind(place).fits(gradient)) {
      return absl::InvalidArgumentError(
          absl::StrCat("the gradient of ", set_->names()[place], " has another shape or type"));
    }
    const size_t group = group_of_[place];
    if (gradient.is_sparse() && group < groups_.size() && !takes_sparse(groups_[group].settings)) {
      return absl::InvalidArgumentError(
          absl::StrCat("the gradient of ", set_->names()[place],
                       " is sparse, which only SGD and Adagrad without weight decay take"));
    }
  }
  return absl::OkStatus();
}

absl::Status ShardStepper::check_rates(const std::vector<double>& rates) const {
  if (rates.size() == groups_.size()) return absl::OkStatus();
  return absl::InvalidArgumentError(
      absl::StrCat(rates.size(), " learning rates for ", groups_.size(), " groups"));
}

// ---- steps

absl::StatusOr<double> ShardStepper::prepare(const StepId& step, std::vector<at::Tensor> gradients,
                                             std::vector<double> learning_rates, bool may_clip) {
  if (!learning_rates.empty()) WEFT_RETURN_IF_ERROR(check_rates(learning_rates));
  MutexLock lock(mutex_);
  return prepare_locked(step, std::move(gradients), std::move(learning_rates), may_clip);
}

absl::StatusOr<double> ShardStepper::prepare_locked(const StepId& step,
                                                    std::vector<at::Tensor> gradients,
                                                    std::vector<double> learning_rates,
                                                    bool may_clip) {
  let_forgotten_go();
  WEFT_ASSIGN_OR_RETURN(const std::optional<double> before, core_.prepare(step));
  if (before.has_value()) return *before;
  WEFT_RETURN_IF_ERROR(check(gradients));
  Slot slot;
  slot.number = step.number;
  slot.gradients = std::move(gradients);
  slot.own_gradients = may_clip;
  const absl::StatusOr<double> norm = fill(slot);
  if (!norm.ok()) {
    return prepend(absl::StrCat(step.to_string(), " could not be prepared: "), norm.status());
  }
  OwnerActions actions;
  core_.on_prepared(step, *norm, std::move(learning_rates), actions);
  carry_out(std::move(actions), nullptr);
  slots_[step.optimizer] = std::move(slot);
  return norm;
}

// Does everything that may fail, so that the commit does not. Returns the squared norm.
absl::StatusOr<double> ShardStepper::fill(Slot& slot) {
  double norm = 0;
  try {
    c10::AutoGradMode no_grad(false);
    for (size_t place = 0; place < slot.gradients.size(); ++place) {
      at::Tensor& gradient = slot.gradients[place];
      if (!gradient.defined()) continue;
      if (group_of_[place] == groups_.size()) {
        gradient.reset();  // it belongs to another optimizer
        continue;
      }
      slot.touched.push_back(place);
      norm += squared_norm(gradient);
      if (slot.own_gradients && !std::isfinite(norm)) {  // the step may clip
        return check_norm(norm, 1, absl::StrCat("the gradient of ", set_->names()[place]));
      }
      // A momentum buffer that mixes dense and sparse gradients would make the step fail half-way.
      if (gradient.is_sparse() && has_momentum(groups_[group_of_[place]].settings)) {
        gradient = gradient.to_dense();
      } else if (slot.own_gradients) {
        gradient = gradient.clone();
      }
    }
    reserve(slot);
  } catch (const std::exception&) {
    return absl::ResourceExhaustedError(dist_autograd_internal::text_of_current_exception());
  }
  return norm;
}

void ShardStepper::reserve(Slot& slot) {
  for (const size_t place : slot.touched) {
    if (!slot.gradients[place].is_sparse()) {
      allocate_state(*optimizer_, groups_[group_of_[place]].settings, handles_[place],
                     [&] { return set_->make_spare(place); });
    }
    // Each slot has its own spare: several optimizers may be prepared, and each commit may need
    // one.
    at::Tensor& spare = slot.spares.emplace_back(std::exchange(spares_[place], at::Tensor()));
    if (mode_ == UpdateMode::kLocked && set_->reading() == ParameterSet::Reading::kVersions &&
        !spare.defined()) {
      spare = set_->make_spare(place);
    }
  }
}

absl::Status ShardStepper::commit(const StepId& step, const StepUpdate& update) {
  MutexLock lock(mutex_);
  return commit_locked(step, update);
}

absl::Status ShardStepper::commit_locked(const StepId& step, const StepUpdate& update) {
  if (core_.outcome(step) == StepOutcome::kPrepared) {
    WEFT_RETURN_IF_ERROR(check_rates(update.learning_rates));
  }
  OwnerActions actions;
  WEFT_RETURN_IF_ERROR(core_.commit(step, update, actions));
  return actions.empty() ? absl::OkStatus() : apply_now(std::get<step::Apply>(actions.front()));
}

void ShardStepper::carry_out(OwnerActions actions, Asks* asks) {
  for (OwnerAction& action : actions) {
    std::visit(Overloaded{
                   [this](const step::Apply& apply) ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_) {
                     const absl::Status applied = apply_now(apply);
                     if (!applied.ok()) {
                       log_warning("a step of a dead caller: ", applied.ToString());
                     }
                   },
                   [this](const step::Drop& drop)
                       ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_) { slots_.erase(drop.step.optimizer); },
                   [asks](step::Ask& ask) {
                     if (asks != nullptr) asks->push_back(std::move(ask));
                   },
               },
               action);
  }
}

absl::Status ShardStepper::apply_now(const step::Apply& action) {
  Slot slot = std::move(slots_[action.step.optimizer]);
  slots_.erase(action.step.optimizer);
  absl::Status done = check_rates(action.update.learning_rates);
  WEFT_FAIL_POINT("shard.commit.begins");
  try {
    if (done.ok()) run(slot, action.update);
  } catch (const std::exception&) {
    done = absl::DataLossError(absl::StrCat(action.step.to_string(), " failed half-way: ",
                                            dist_autograd_internal::text_of_current_exception()));
  }
  if (!done.ok()) core_.on_damage(action.step, done);
  WEFT_FAIL_POINT("shard.commit.ended");
  return done;
}

void ShardStepper::run(Slot& slot, const StepUpdate& update) {
  torch::optim::Optimizer& optimizer = *optimizer_;
  for (size_t g = 0; g < groups_.size(); ++g) {
    optimizer.param_groups()[g].options().set_lr(update.learning_rates[g]);
  }
  const auto body = [&] {
    c10::AutoGradMode no_grad(false);
    // The user's own leaves may hold a .grad, so it is put back afterwards.
    std::vector<std::pair<size_t, at::Tensor>> kept;
    const auto restore = [&] {
      for (auto& [place, gradient] : kept) handles_[place].mutable_grad() = std::move(gradient);
    };
    try {
      for (size_t place = 0; place < handles_.size(); ++place) {
        if (group_of_[place] == groups_.size()) continue;
        at::Tensor& gradient = slot.gradients[place];
        if (gradient.defined() && update.clip != 1.0) {
          gradient =
              slot.own_gradients ? gradient.mul_(update.clip) : at::mul(gradient, update.clip);
        }
        kept.emplace_back(place, handles_[place].grad());
        handles_[place].mutable_grad() = std::move(gradient);
      }
      optimizer.step();
    } catch (...) {
      restore();
      throw;
    }
    restore();
  };
  if (mode_ == UpdateMode::kHogwild) {
    body();
    return;
  }
  set_->update(slot.touched, slot.spares, body);
  for (size_t i = 0; i < slot.spares.size(); ++i) {
    if (slot.spares[i].defined()) spares_[slot.touched[i]] = std::move(slot.spares[i]);
  }
}

absl::Status ShardStepper::abort(const StepId& step) {
  MutexLock lock(mutex_);
  OwnerActions actions;
  const absl::Status done = core_.abort(step, actions);
  carry_out(std::move(actions), nullptr);
  return done;
}

absl::StatusOr<StepDecision> ShardStepper::settle(const StepId& step) {
  MutexLock lock(mutex_);
  OwnerActions actions;
  absl::StatusOr<StepDecision> decision = core_.settle(step, actions);
  carry_out(std::move(actions), nullptr);
  return decision;
}

void ShardStepper::meet(const OptimizerId& optimizer, std::vector<WorkerId> others) {
  MutexLock lock(mutex_);
  core_.meet(optimizer, std::move(others));
}

void ShardStepper::on_worker_dead(const OptimizerId& optimizer, WorkerId dead, Asks& asks) {
  MutexLock lock(mutex_);
  OwnerActions actions;
  core_.on_worker_dead(optimizer, dead, actions);
  carry_out(std::move(actions), &asks);
}

StepDecision ShardStepper::inquire(const StepId& step, const std::vector<WorkerId>& dead,
                                   Asks& asks) {
  MutexLock lock(mutex_);
  OwnerActions actions;
  const StepDecision decision = core_.inquire(step, dead, actions);
  carry_out(std::move(actions), &asks);
  return decision;
}

void ShardStepper::on_answer(const StepId& step, size_t other, uint64_t round,
                             const StepDecision& decision, Asks& asks) {
  MutexLock lock(mutex_);
  OwnerActions actions;
  core_.on_answer(step, other, round, decision, actions);
  carry_out(std::move(actions), &asks);
}

StepOutcome ShardStepper::outcome(const StepId& step) const {
  MutexLock lock(mutex_);
  return core_.outcome(step);
}

absl::StatusOr<AppliedStep> ShardStepper::applied(const StepId& step) const {
  MutexLock lock(mutex_);
  return core_.applied(step);
}

std::vector<StepId> ShardStepper::undecided() const {
  MutexLock lock(mutex_);
  return core_.undecided();
}

absl::StatusOr<SequenceStanding> ShardStepper::join(const OptimizerId& optimizer,
                                                    const std::string& sequence) {
  MutexLock lock(mutex_);
  let_forgotten_go();
  return core_.join(optimizer, sequence);
}

void ShardStepper::forget(const OptimizerId& optimizer) {
  MutexLock lock(forgotten_mutex_);
  forgotten_.push_back(optimizer);
}

void ShardStepper::let_forgotten_go() {
  std::vector<OptimizerId> forgotten;
  {
    MutexLock lock(forgotten_mutex_);
    forgotten.swap(forgotten_);
  }
  OwnerActions actions;
  for (const OptimizerId& optimizer : forgotten) core_.forget(optimizer, actions);
  carry_out(std::move(actions), nullptr);
}

size_t ShardStepper::optimizers() {
  MutexLock lock(mutex_);
  let_forgotten_go();
  return core_.newest().size();
}

std::string ShardStepper::sequence_of(const OptimizerId& optimizer) const {
  MutexLock lock(mutex_);
  return core_.sequence_of(optimizer);
}

absl::Status ShardStepper::resume(const OptimizerId& optimizer, uint64_t number,
                                  bool brought_back) {
  MutexLock lock(mutex_);
  return core_.resume(optimizer, number, brought_back);
}

absl::Status ShardStepper::apply(const StepId& step, std::vector<at::Tensor> gradients,
                                 const StepUpdate& update) {
  MutexLock lock(mutex_);
  WEFT_RETURN_IF_ERROR(prepare_locked(step, std::move(gradients), {}, false).status());
  return commit_locked(step, update);
}

// ---- state

TensorMap ShardStepper::state() const {
  MutexLock lock(mutex_);
  return state_while_held();
}

TensorMap ShardStepper::state_while_held() const {
  TensorMap state;
  for (const Group& group : groups_) {
    for (const size_t place : group.parameters) {
      save_state(*optimizer_, group.settings, handles_[place], set_->names()[place], state);
    }
  }
  return state;
}

absl::Status ShardStepper::check_state(const TensorMap& state) const {
  std::set<std::string> known;
  for (const Group& group : groups_) {
    for (const size_t place : group.parameters) {
      WEFT_RETURN_IF_ERROR(dist_optim_internal::check_state(group.settings, set_->kind(place),
                                                            set_->names()[place], state, known));
    }
  }
  for (const auto& [name, tensor] : state) {
    if (known.contains(name)) continue;
    return absl::InvalidArgumentError(
        absl::StrCat(name, " is nothing that this optimizer remembers"));
  }
  return absl::OkStatus();
}

absl::Status ShardStepper::load_state(const TensorMap& state) {
  WEFT_RETURN_IF_ERROR(check_state(state));
  MutexLock lock(mutex_);
  load_checked(state);
  return absl::OkStatus();
}

void ShardStepper::restore_while_held(const TensorMap& state,
                                      const std::map<std::string, uint64_t>& sequences) {
  load_checked(state);
  OwnerActions actions;
  core_.restore(sequences, actions);
  carry_out(std::move(actions), nullptr);
}

void ShardStepper::load_checked(const TensorMap& state) {
  // Everything that can fail comes before the first change.
  std::vector<std::pair<size_t, ParameterStatePtr>> loaded;
  for (const Group& group : groups_) {
    for (const size_t place : group.parameters) {
      loaded.emplace_back(
          place, make_state(group.settings, set_->names()[place], state, set_->make_spare(place)));
    }
  }
  for (auto& [place, one] : loaded) replace_state(*optimizer_, handles_[place], std::move(one));
}

}  // namespace weft::dist_optim_internal
