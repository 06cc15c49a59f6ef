// Where DistributedDataParallel registers for passes of distributed autograd: the side of the seam
// that knows nothing of them (the other one is dist_autograd_bridge.h).
//
// Thread safety: all methods from any thread. Lifetime: outlives what is attached.
#pragma once

#include <memory>

namespace weft {

namespace ddp_internal {
class Reducer;
}

class DistributedGradients {
 public:
  virtual ~DistributedGradients() = default;
  virtual void attach(const std::shared_ptr<ddp_internal::Reducer>& reducer) = 0;
  virtual void detach(const std::shared_ptr<ddp_internal::Reducer>& reducer) = 0;
  // Waits until nothing is left of a failed pass: before each forward and before another group. A
  // second or so: what the pass waited for in its group has been aborted.
  virtual void settle(const std::shared_ptr<ddp_internal::Reducer>& reducer) = 0;
};

}  // namespace weft
