// Holds the readable gradients of one context on one worker: the sums over its committed passes.
//
// Thread safety: all methods may be called from any thread. The readers compute the sums, so that a
// commit costs a transport thread nothing.
#pragma once

#include <vector>

#include "weft/base/mutex.h"
#include "weft/dist_autograd/graph/leaf_stage.h"

namespace weft::dist_autograd_internal {

class CommittedGradients {
 public:
  void add(std::vector<LeafGradient> pass) ABSL_LOCKS_EXCLUDED(mutex_);
  // In the order in which the variables first came.
  std::vector<LeafGradient> all() ABSL_LOCKS_EXCLUDED(mutex_);
  // The gradient of `variable`; undefined if there is none.
  at::Tensor find(const at::Tensor& variable) ABSL_LOCKS_EXCLUDED(mutex_);

 private:
  void sum_up() ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);

  Mutex mutex_;
  std::vector<std::vector<LeafGradient>> unsummed_ ABSL_GUARDED_BY(mutex_);
  std::vector<LeafGradient> sums_ ABSL_GUARDED_BY(mutex_);
  absl::flat_hash_map<const void*, size_t> index_ ABSL_GUARDED_BY(mutex_);  // by TensorImpl
};

}  // namespace weft::dist_autograd_internal
