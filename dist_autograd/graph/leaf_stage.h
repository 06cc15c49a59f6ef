// Holds the staged gradients of one pass by leaf until the pass is committed.
//
// Thread safety: none.
// Lifetime: keeps the variables alive. Once a leaf is final, its gradient shares memory with no
// other tensor.
#pragma once

#include <cstddef>
#include <vector>

#include <ATen/core/Tensor.h>

#include "absl/container/flat_hash_map.h"
#include "absl/status/status.h"

namespace weft::dist_autograd_internal {

struct LeafGradient {
  at::Tensor variable;
  at::Tensor gradient;
};

// Adds `gradient` to `sum` as LibTorch adds to `.grad`. It takes the first gradient over if nobody
// else holds it, and keeps a sparse one sparse. Otherwise it copies it into the variable's layout.
// It adds later gradients in place. Afterwards `sum` shares memory with no other tensor. Gradient
// recording is off meanwhile.
void accumulate_gradient(const at::Tensor& variable, at::Tensor& sum, at::Tensor gradient);

class LeafStage {
 public:
  // Does the same as AccumulateGrad::apply, but with the staged gradient instead of `.grad`. If the
  // gradient is undefined or the variable no longer requires one, nothing changes. `held_by_hooks`:
  // the caller keeps one more reference to the gradient. Throws if the variable is no leaf any
  // more.
  void add(const at::Tensor& variable, at::Tensor gradient, bool held_by_hooks);
  // Returns the gradient of `variable`, or null if there is none. Call it after the references to
  // the added gradients are gone. The returned gradient then shares memory with no other tensor.
  at::Tensor* finish(const at::Tensor& variable);
  // Returns the gradient of `variable`, or null. Valid until the next add, give or take.
  at::Tensor* find(const at::Tensor& variable);
  // Replaces the gradient of a variable. InvalidArgument: the variable has none, or the new one
  // does not have the variable's shape and type.
  absl::Status replace(const at::Tensor& variable, at::Tensor gradient);
  // The same, for a variable that may have none yet. InvalidArgument too if it is no leaf, or
  // requires no gradient.
  absl::Status give(const at::Tensor& variable, at::Tensor gradient);
  // Takes all gradients out, in the order in which the variables came.
  std::vector<LeafGradient> take();

 private:
  std::vector<LeafGradient> leaves_;
  absl::flat_hash_map<const void*, size_t> index_;  // by the variable's TensorImpl
};

}  // namespace weft::dist_autograd_internal
