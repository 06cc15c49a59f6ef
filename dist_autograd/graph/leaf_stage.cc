#include "weft/dist_autograd/graph/leaf_stage.h"

#include <stdexcept>
#include <utility>

#include <c10/core/GradMode.h>
#include <torch/csrc/autograd/functions/accumulate_grad.h>

#include "absl/strings/str_cat.h"

namespace weft::dist_autograd_internal {
namespace {

// `references`: the number of references to `gradient` if only the caller's side holds it.
void add_gradient(const at::Tensor& variable, at::Tensor& sum, const at::Tensor& gradient,
                  size_t references) {
  torch::autograd::AccumulateGrad::accumulateGrad(
      variable, sum, gradient, references,
      [&sum](at::Tensor&& result) { sum = std::move(result); });
}

// LibTorch counts only the references to the tensor. But the tensor may be a view of memory that a
// gradient for another worker, or for another leaf, still shares. Then this copies it.
void own_memory(const at::Tensor& variable, at::Tensor& gradient) {
  if (gradient.defined() && gradient.has_storage() && gradient.storage().use_count() > 1) {
    gradient = torch::autograd::utils::clone_obey_contract(gradient, variable);
  }
}

}  // namespace

void accumulate_gradient(const at::Tensor& variable, at::Tensor& sum, at::Tensor gradient) {
  c10::AutoGradMode no_recording(false);
  add_gradient(variable, sum, gradient, 1);
  gradient.reset();
  own_memory(variable, sum);
}

void LeafStage::add(const at::Tensor& variable, at::Tensor gradient, bool held_by_hooks) {
  if (!gradient.defined()) return;
  if (variable.grad_fn()) {
    throw std::logic_error("leaf variable has been moved into the graph interior");
  }
  if (!variable.requires_grad()) return;
  const auto [it, is_new] = index_.try_emplace(variable.unsafeGetTensorImpl(), leaves_.size());
  if (is_new) leaves_.push_back({variable, at::Tensor()});
  add_gradient(variable, leaves_[it->second].gradient, gradient, 1 + held_by_hooks);
}

at::Tensor* LeafStage::finish(const at::Tensor& variable) {
  at::Tensor* gradient = find(variable);
  if (gradient != nullptr) own_memory(variable, *gradient);
  return gradient;
}

at::Tensor* LeafStage::find(const at::Tensor& variable) {
  const auto it = index_.find(variable.unsafeGetTensorImpl());
  return it == index_.end() ? nullptr : &leaves_[it->second].gradient;
}

absl::Status LeafStage::replace(const at::Tensor& variable, at::Tensor gradient) {
  at::Tensor* staged = find(variable);
  if (staged == nullptr) {
    return absl::InvalidArgumentError("a leaf without a gradient cannot be given another one");
  }
  if (!gradient.defined() || gradient.sizes() != variable.sizes() ||
      gradient.scalar_type() != variable.scalar_type()) {
    return absl::InvalidArgumentError(absl::StrCat(
        "a leaf of ", variable.dim(), " dimensions and ", variable.numel(), " elements of type ",
        c10::toString(variable.scalar_type()), " cannot have the gradient it was given"));
  }
  *staged = std::move(gradient);
  if (staged->use_count() > 1) {  // the caller still holds the tensor
    *staged = torch::autograd::utils::clone_obey_contract(*staged, variable);
  }
  own_memory(variable, *staged);
  return absl::OkStatus();
}

absl::Status LeafStage::give(const at::Tensor& variable, at::Tensor gradient) {
  if (find(variable) != nullptr) return replace(variable, std::move(gradient));
  if (!variable.requires_grad() || variable.grad_fn()) {
    return absl::InvalidArgumentError("only a leaf that requires a gradient can be given one");
  }
  index_.emplace(variable.unsafeGetTensorImpl(), leaves_.size());
  leaves_.push_back({variable, at::Tensor()});
  absl::Status status = replace(variable, std::move(gradient));
  if (!status.ok()) {
    index_.erase(variable.unsafeGetTensorImpl());
    leaves_.pop_back();
  }
  return status;
}

std::vector<LeafGradient> LeafStage::take() {
  index_.clear();
  return std::exchange(leaves_, {});
}

}  // namespace weft::dist_autograd_internal
