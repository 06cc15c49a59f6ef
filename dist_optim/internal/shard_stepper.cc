#include "weft/dist_optim/internal/shard_stepper.h"

#include <exception>
#include <set>
#include <utility>

#include <ATen/ops/linalg_vector_norm.h>
#include <ATen/ops/mul.h>
#include <c10/core/GradMode.h>
#include <torch/optim/optimizer.h>

#include "absl/strings/str_cat.h"
#include "weft/base/status.h"
#include "weft/dist_optim/internal/optimizer_state.h"

namespace weft::internal {
namespace {

double squared_norm(const at::Tensor& gradient) {
  const at::Tensor values = gradient.is_sparse() ? gradient.coalesce().values() : gradient;
  const double norm = at::linalg_vector_norm(values, 2, std::nullopt, false).item<double>();
  return norm * norm;
}

bool has_momentum(const OptimizerSettings& settings) {
  const auto* sgd = std::get_if<SgdSettings>(&settings);
  return sgd != nullptr && sgd->momentum != 0;
}

// LibTorch's optimizers say so themselves, but in the midst of a step.
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
    // Under hogwild steppers run at once, and each puts its gradient into a handle of its own.
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

StepOutcome ShardStepper::outcome_of(const Instance& instance, uint64_t number) const {
  if (instance.slot.has_value() && instance.slot->number == number) return StepOutcome::kPrepared;
  if (instance.applied.contains(number)) return StepOutcome::kApplied;
  if (number > instance.decided) return StepOutcome::kUnknown;
  // What left `applied` for room is older than all that is in it.
  const bool complete = instance.applied.size() < kRemembered;
  if (complete || number > instance.applied.begin()->first) return StepOutcome::kAborted;
  return StepOutcome::kForgotten;
}

absl::StatusOr<double> ShardStepper::prepare(const StepId& step, std::vector<at::Tensor> gradients,
                                             std::vector<double> learning_rates, bool may_clip) {
  if (!learning_rates.empty()) WEFT_RETURN_IF_ERROR(check_rates(learning_rates));
  MutexLock lock(mutex_);
  WEFT_ASSIGN_OR_RETURN(const double norm, prepare_locked(step, std::move(gradients), may_clip));
  Instance& instance = instances_[step.optimizer];
  if (instance.slot.has_value()) instance.slot->learning_rates = std::move(learning_rates);
  return norm;
}

absl::StatusOr<double> ShardStepper::prepare_locked(const StepId& step,
                                                    std::vector<at::Tensor> gradients,
                                                    bool may_clip) {
  WEFT_RETURN_IF_ERROR(damage_);
  Instance& instance = instances_[step.optimizer];
  switch (outcome_of(instance, step.number)) {
    case StepOutcome::kPrepared:
      return instance.slot->squared_norm;
    case StepOutcome::kApplied:
      return instance.applied.at(step.number).squared_norm;
    case StepOutcome::kUnknown:
      break;
    case StepOutcome::kAborted:
    case StepOutcome::kForgotten:
      return absl::FailedPreconditionError(absl::StrCat(
          step.to_string(), " was given up; the last decided one is ", instance.decided));
  }
  WEFT_RETURN_IF_ERROR(check(gradients));
  Slot slot;
  slot.number = step.number;
  slot.gradients = std::move(gradients);
  slot.own_gradients = may_clip;
  try {
    c10::AutoGradMode no_grad(false);
    for (size_t place = 0; place < slot.gradients.size(); ++place) {
      at::Tensor& gradient = slot.gradients[place];
      if (!gradient.defined()) continue;
      if (group_of_[place] == groups_.size()) {
        gradient.reset();  // another optimizer's
        continue;
      }
      slot.touched.push_back(place);
      slot.squared_norm += squared_norm(gradient);
      // Buffers that mix layouts fail half-way.
      if (gradient.is_sparse() && has_momentum(groups_[group_of_[place]].settings)) {
        gradient = gradient.to_dense();
      } else if (may_clip) {
        gradient = gradient.clone();
      }
    }
    reserve(slot);
  } catch (const std::exception& failed) {
    return absl::ResourceExhaustedError(
        absl::StrCat(step.to_string(), " could not be prepared: ", failed.what()));
  }
  // The caller decides one step before it begins the next: an older one was given up.
  instance.slot = std::move(slot);
  instance.decided = step.number - 1;
  return instance.slot->squared_norm;
}

void ShardStepper::reserve(Slot& slot) {
  for (const size_t place : slot.touched) {
    if (!slot.gradients[place].is_sparse()) {
      allocate_state(*optimizer_, groups_[group_of_[place]].settings, handles_[place],
                     [&] { return set_->make_spare(place); });
    }
    // Each slot its own: several instances may be prepared, and every commit may need one.
    at::Tensor& spare = slot.spares.emplace_back(std::exchange(spares_[place], at::Tensor()));
    if (mode_ == UpdateMode::kLocked && set_->reading() == ParameterSet::Reading::kVersions &&
        !spare.defined()) {
      spare = set_->make_spare(place);
    }
  }
}

absl::Status ShardStepper::commit(const StepId& step, const StepUpdate& update) {
  MutexLock lock(mutex_);
  const Instance& instance = instances_[step.optimizer];
  if (instance.slot.has_value() && instance.slot->number == step.number && instance.slot->fenced) {
    return absl::FailedPreconditionError(
        absl::StrCat(step.to_string(), " is decided by its owners, for its caller died"));
  }
  return commit_locked(step, update);
}

absl::Status ShardStepper::commit_fenced(const StepId& step, double clip) {
  MutexLock lock(mutex_);
  const Instance& instance = instances_[step.optimizer];
  StepUpdate update;
  update.clip = clip;
  if (instance.slot.has_value()) update.learning_rates = instance.slot->learning_rates;
  return commit_locked(step, update);
}

absl::Status ShardStepper::commit_locked(const StepId& step, const StepUpdate& update) {
  Instance& instance = instances_[step.optimizer];
  const StepOutcome outcome = outcome_of(instance, step.number);
  if (outcome == StepOutcome::kApplied) return step == damaged_ ? damage_ : absl::OkStatus();
  WEFT_RETURN_IF_ERROR(damage_);
  if (outcome != StepOutcome::kPrepared) {
    return absl::FailedPreconditionError(absl::StrCat(
        step.to_string(), " is not prepared; the last decided one is ", instance.decided));
  }
  WEFT_RETURN_IF_ERROR(check_rates(update.learning_rates));
  Slot slot = *std::exchange(instance.slot, std::nullopt);
  instance.decided = step.number;
  absl::Status done;
  try {
    run(slot, update);
  } catch (const std::exception& failed) {
    done = damage_ =
        absl::DataLossError(absl::StrCat(step.to_string(), " failed half-way: ", failed.what()));
    damaged_ = step;
  }
  instance.applied[step.number] = {slot.squared_norm, update};
  if (instance.applied.size() > kRemembered) instance.applied.erase(instance.applied.begin());
  return done;
}

void ShardStepper::run(Slot& slot, const StepUpdate& update) {
  for (size_t g = 0; g < groups_.size(); ++g) {
    optimizer_->param_groups()[g].options().set_lr(update.learning_rates[g]);
  }
  const auto body = [&] {
    c10::AutoGradMode no_grad(false);
    // The user's own leaves may hold a .grad: it is put back as it was.
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
      optimizer_->step();
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
  Instance& instance = instances_[step.optimizer];
  switch (outcome_of(instance, step.number)) {
    case StepOutcome::kApplied:
      return absl::FailedPreconditionError(absl::StrCat(step.to_string(), " was applied"));
    case StepOutcome::kPrepared:
      instance.slot.reset();
      [[fallthrough]];
    case StepOutcome::kUnknown:
      instance.slot.reset();
      instance.decided = step.number;
      break;
    default:
      break;
  }
  return absl::OkStatus();
}

StepOutcome ShardStepper::outcome(const StepId& step) const {
  MutexLock lock(mutex_);
  const auto found = instances_.find(step.optimizer);
  return found == instances_.end() ? StepOutcome::kUnknown : outcome_of(found->second, step.number);
}

absl::StatusOr<StepOutcome> ShardStepper::settle(const StepId& step) {
  const absl::Status aborted = abort(step);
  if (aborted.ok()) return outcome(step);
  MutexLock lock(mutex_);
  if (step == damaged_) return damage_;
  return StepOutcome::kApplied;
}

StepOutcome ShardStepper::fence(const StepId& step) {
  MutexLock lock(mutex_);
  Instance& instance = instances_[step.optimizer];
  const StepOutcome outcome = outcome_of(instance, step.number);
  if (outcome == StepOutcome::kPrepared) instance.slot->fenced = true;
  if (outcome != StepOutcome::kUnknown) return outcome;
  instance.slot.reset();
  instance.decided = step.number;
  return StepOutcome::kAborted;
}

absl::StatusOr<ShardStepper::Applied> ShardStepper::applied(const StepId& step) const {
  MutexLock lock(mutex_);
  const auto instance = instances_.find(step.optimizer);
  if (instance != instances_.end()) {
    const auto applied = instance->second.applied.find(step.number);
    if (applied != instance->second.applied.end()) return applied->second;
  }
  return absl::NotFoundError(absl::StrCat(step.to_string(), " is not known as applied"));
}

std::vector<StepId> ShardStepper::undecided() const {
  MutexLock lock(mutex_);
  std::vector<StepId> steps;
  for (const auto& [optimizer, instance] : instances_) {
    if (instance.slot.has_value()) steps.push_back({optimizer, instance.slot->number});
  }
  return steps;
}

absl::Status ShardStepper::apply(const StepId& step, std::vector<at::Tensor> gradients,
                                 const StepUpdate& update) {
  MutexLock lock(mutex_);
  WEFT_RETURN_IF_ERROR(prepare_locked(step, std::move(gradients), false).status());
  return commit_locked(step, update);
}

TensorMap ShardStepper::state() const {
  TensorMap state;
  MutexLock lock(mutex_);
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
      WEFT_RETURN_IF_ERROR(internal::check_state(group.settings, set_->kind(place),
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
  // All that can fail comes before the first change.
  std::vector<std::pair<size_t, ParameterStatePtr>> loaded;
  for (const Group& group : groups_) {
    for (const size_t place : group.parameters) {
      loaded.emplace_back(
          place, make_state(group.settings, set_->names()[place], state, set_->make_spare(place)));
    }
  }
  MutexLock lock(mutex_);
  for (auto& [place, one] : loaded) replace_state(*optimizer_, handles_[place], std::move(one));
  return absl::OkStatus();
}

}  // namespace weft::internal
