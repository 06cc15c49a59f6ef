#include "weft/dist_autograd/internal/committed_gradients.h"

#include <utility>

namespace weft::dist_autograd_internal {

void CommittedGradients::add(std::vector<LeafGradient> pass) {
  MutexLock lock(mutex_);
  unsummed_.push_back(std::move(pass));
}

void CommittedGradients::sum_up() {
  for (std::vector<LeafGradient>& pass : std::exchange(unsummed_, {})) {
    for (LeafGradient& leaf : pass) {
      const auto [found, is_new] =
          index_.try_emplace(leaf.variable.unsafeGetTensorImpl(), sums_.size());
      if (is_new) {
        sums_.push_back(std::move(leaf));
      } else {
        accumulate_gradient(leaf.variable, sums_[found->second].gradient, std::move(leaf.gradient));
      }
    }
  }
}

std::vector<LeafGradient> CommittedGradients::all() {
  MutexLock lock(mutex_);
  sum_up();
  return sums_;
}

at::Tensor CommittedGradients::find(const at::Tensor& variable) {
  MutexLock lock(mutex_);
  sum_up();
  const auto found = index_.find(variable.unsafeGetTensorImpl());
  return found == index_.end() ? at::Tensor() : sums_[found->second].gradient;
}

}  // namespace weft::dist_autograd_internal
