// Sees every leaf's gradient of a backward pass on this worker once it is final, and may replace
// it.
//
// The seam on which data parallel training hangs its buckets: `dist_autograd`
// knows nothing of who implements it.
//
// Thread safety: called on the strand of one pass; passes of several contexts may call at once.
// Lifetime: must outlive every pass it was given to.
// Errors: an error fails the pass.
#pragma once

#include "absl/status/status.h"

namespace at {
class Tensor;
}

namespace weft {

class LeafObserver {
 public:
  virtual ~LeafObserver() = default;

  // `gradient` is the whole gradient of `variable` in this pass on this worker, after all hooks. It
  // may be assigned or changed in place; nobody else holds it. Not called for a leaf that the pass
  // does not reach. A gradient that is known only later is given to the pass as a replacement,
  // under a PassHold.
  virtual absl::Status leaf_final(const at::Tensor& variable, at::Tensor& gradient) = 0;
};

}  // namespace weft
