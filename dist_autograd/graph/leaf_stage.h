// Holds the gradients of one pass by leaf until the pass is committed.
//
// Thread safety: none.
// Lifetime: keeps the variables alive. Shares memory with no other tensor once a leaf is final.
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

// Adds `gradient` to `sum` as LibTorch adds to `.grad`: takes it over when nobody else holds it,
// keeps sparse gradients sparse, else copies into the variable's layout; later ones are added in
// place. Never leaves `sum` sharing memory with another tensor. Gradient recording is off
// meanwhile.
void accumulate_gradient(const at::Tensor& variable, at::Tensor& sum, at::Tensor gradient);

class LeafStage {
 public:
  // What AccumulateGrad::apply does, with the stage in the place of `.grad`; an undefined gradient
  // and a variable that requires none any more change nothing. `held_by_hooks`: the caller keeps
  // one more reference to the gradient. Throws if the variable is no leaf any more.
  void add(const at::Tensor& variable, at::Tensor gradient, bool held_by_hooks);
  // The gradient of `variable`, null if there is none. The caller has let go of what it added: the
  // stage now owns its memory alone.
  at::Tensor* finish(const at::Tensor& variable);
  // Null if there is none. Valid until the next add or take.
  at::Tensor* find(const at::Tensor& variable);
  // Gives a variable that has a gradient another one. InvalidArgument: it has none, or the new one
  // is not of its shape and type.
  absl::Status replace(const at::Tensor& variable, at::Tensor gradient);
  // The same, for a variable that may have none yet. InvalidArgument also: it is no leaf.
  absl::Status give(const at::Tensor& variable, at::Tensor gradient);
  // In the order in which the variables came.
  std::vector<LeafGradient> take();

 private:
  std::vector<LeafGradient> leaves_;
  absl::flat_hash_map<const void*, size_t> index_;  // by the variable's TensorImpl
};

}  // namespace weft::dist_autograd_internal
