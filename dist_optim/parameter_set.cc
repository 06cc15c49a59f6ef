#include "weft/dist_optim/parameter_set.h"

#include <algorithm>
#include <set>
#include <stdexcept>
#include <utility>

#include <ATen/ops/empty_like.h>
#include <c10/core/GradMode.h>
#include <torch/nn/module.h>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"

namespace weft {
namespace {

// Sets with Reading::kLeaves may share leaves with each other, so their steps take one common lock.
Mutex& leaf_steps() {
  static Mutex mutex;
  return mutex;
}

}  // namespace

std::vector<NamedParameter> named_parameters(const torch::nn::Module& module) {
  std::vector<NamedParameter> result;
  std::set<const void*> seen;
  for (const auto& item : module.named_parameters()) {
    if (seen.insert(item.value().unsafeGetTensorImpl()).second) {
      result.push_back({item.key(), item.value()});
    }
  }
  return result;
}

ParameterSet::ParameterSet(std::vector<NamedParameter> parameters, Reading reading)
    : reading_(reading) {
  std::set<std::string> seen;
  for (NamedParameter& parameter : parameters) {
    if (!seen.insert(parameter.name).second) {
      throw std::invalid_argument(absl::StrCat("two parameters are named ", parameter.name));
    }
    if (!parameter.value.defined() || !parameter.value.is_leaf()) {
      throw std::invalid_argument(absl::StrCat("parameter ", parameter.name, " is not a leaf"));
    }
    names_.push_back(std::move(parameter.name));
    live_.push_back(std::move(parameter.value));
  }
}

std::shared_ptr<ParameterSet> ParameterSet::of(const torch::nn::Module& module) {
  return std::make_shared<ParameterSet>(named_parameters(module), Reading::kLeaves);
}

absl::StatusOr<size_t> ParameterSet::index_of(std::string_view name) const {
  const auto found = std::find(names_.begin(), names_.end(), name);
  if (found == names_.end()) {
    return absl::NotFoundError(absl::StrCat("no parameter is named ", std::string(name),
                                            "; there are ", absl::StrJoin(names_, ", ")));
  }
  return static_cast<size_t>(found - names_.begin());
}

ParameterKind ParameterSet::kind(size_t place) const {
  MutexLock lock(mutex_);
  return {live_[place].sizes().vec(), live_[place].scalar_type()};
}

at::Tensor ParameterSet::make_spare(size_t place) const {
  at::Tensor alias;
  {
    MutexLock lock(mutex_);
    alias = live_[place].variable_data();
  }
  c10::AutoGradMode no_grad(false);
  return at::empty_like(alias, at::MemoryFormat::Preserve);
}

std::vector<at::Tensor> ParameterSet::aliases(bool requires_grad) const {
  std::vector<at::Tensor> result;
  result.reserve(live_.size());
  for (const at::Tensor& live : live_) {
    // The alias shares the storage, but neither the version counter nor the gradient accumulator.
    at::Tensor alias = live.variable_data();
    if (requires_grad && live.requires_grad()) alias.requires_grad_(true);
    result.push_back(std::move(alias));
  }
  return result;
}

std::vector<at::Tensor> ParameterSet::read(const ContextId& context) {
  MutexLock lock(mutex_);
  if (!context.valid()) return aliases(false);
  const auto [read, first] = reads_.try_emplace(context);
  if (first) {
    read->second = {version_, reading_ == Reading::kLeaves ? live_ : aliases(true)};
  }
  return read->second.leaves;
}

std::vector<at::Tensor> ParameterSet::bind(const ContextId& context,
                                           std::vector<at::Tensor> leaves) {
  MutexLock lock(mutex_);
  if (context.valid()) {
    const auto found = reads_.find(context);
    if (found != reads_.end()) return found->second.leaves;
  }
  for (size_t i = 0; i < live_.size(); ++i) leaves[i].set_data(live_[i].variable_data());
  if (context.valid()) reads_[context] = {version_, leaves};
  return leaves;
}

std::vector<at::Tensor> ParameterSet::leaves(const ContextId& context) const {
  MutexLock lock(mutex_);
  const auto found = reads_.find(context);
  return found == reads_.end() ? std::vector<at::Tensor>() : found->second.leaves;
}

void ParameterSet::release(const ContextId& context) {
  Read ended;  // the tensors are destroyed after the lock is released
  MutexLock lock(mutex_);
  const auto found = reads_.find(context);
  if (found == reads_.end()) return;
  ended = std::move(found->second);
  reads_.erase(found);
}

size_t ParameterSet::live_versions() const {
  MutexLock lock(mutex_);
  std::set<uint64_t> versions = {version_};
  for (const auto& [context, read] : reads_) versions.insert(read.version);
  return versions.size();
}

size_t ParameterSet::live_contexts() const {
  MutexLock lock(mutex_);
  return reads_.size();
}

absl::Status ParameterSet::fix_mode(UpdateMode mode) {
  MutexLock lock(mutex_);
  if (mode_fixed_ && mode != mode_) {
    const char* fixed = mode_ == UpdateMode::kLocked ? "locked" : "hogwild";
    return absl::FailedPreconditionError(
        absl::StrCat("these parameters are updated in mode ", fixed));
  }
  mode_fixed_ = true;
  mode_ = mode;
  return absl::OkStatus();
}

std::shared_ptr<void> ParameterSet::shared(const std::string& name,
                                           const std::function<std::shared_ptr<void>()>& make) {
  MutexLock lock(shared_mutex_);
  std::weak_ptr<void>& entry = shared_[name];
  std::shared_ptr<void> object = entry.lock();
  if (object == nullptr) entry = object = make();
  return object;
}

absl::Status ParameterSet::keep_steps(
    const std::shared_ptr<dist_optim_internal::StepKeeper>& keeper) {
  MutexLock lock(mutex_);
  if (mode_fixed_) {
    return absl::FailedPreconditionError("these parameters have an optimizer already");
  }
  keeper_ = keeper;
  return absl::OkStatus();
}

std::shared_ptr<dist_optim_internal::StepKeeper> ParameterSet::keeper() const {
  MutexLock lock(mutex_);
  return keeper_.lock();
}

TensorMap ParameterSet::state() const {
  c10::AutoGradMode no_grad(false);
  MutexLock lock(mutex_);
  TensorMap state;
  for (size_t i = 0; i < live_.size(); ++i) state[names_[i]] = live_[i].detach().clone();
  return state;
}

absl::Status ParameterSet::load_state(const TensorMap& state) {
  std::vector<size_t> touched;
  std::vector<at::Tensor> spares;
  for (const auto& [name, value] : state) {
    const absl::StatusOr<size_t> index = index_of(name);
    if (!index.ok()) return absl::InvalidArgumentError(index.status().message());
    if (!kind(*index).fits(value)) {
      return absl::InvalidArgumentError(
          absl::StrCat("parameter ", name, " has another shape or type than the state's"));
    }
    touched.push_back(*index);
    spares.push_back(make_spare(*index));
  }
  if (touched.size() != live_.size()) {
    for (const std::string& name : names_) {
      if (!state.contains(name)) {
        return absl::InvalidArgumentError(absl::StrCat("the state lacks parameter ", name));
      }
    }
  }
  update(touched, spares, [&] {
    c10::AutoGradMode no_grad(false);
    for (const size_t index : touched) live_[index].copy_(state.at(names_[index]));
  });
  return absl::OkStatus();
}

void ParameterSet::update(const std::vector<size_t>& touched, std::vector<at::Tensor>& spares,
                          const std::function<void()>& body) {
  c10::AutoGradMode no_grad(false);
  if (reading_ == Reading::kLeaves) {
    MutexLock all_leaves(leaf_steps());
    MutexLock lock(mutex_);
    body();
    ++version_;
    // LibTorch's optimizers write through p.data(), which does not raise autograd's version
    // counter.
    if (mode_ == UpdateMode::kLocked) {
      for (const size_t place : touched) live_[place].unsafeGetTensorImpl()->bump_version();
    }
    return;
  }
  MutexLock lock(mutex_);
  for (size_t i = 0; i < touched.size() && mode_ == UpdateMode::kLocked; ++i) {
    at::Tensor& live = live_[touched[i]];
    // Aliases are made only under this lock, so a count of one stays one. If make_spare holds the
    // storage for a moment, the only effect is an unnecessary copy.
    if (live.storage().use_count() == 1) continue;
    spares[i].copy_(live);
    live.set_data(std::exchange(spares[i], at::Tensor()));
  }
  body();
  ++version_;
}

}  // namespace weft
