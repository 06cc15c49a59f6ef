// Registers the reducers of DistributedDataParallel for passes of distributed autograd. This is the
// side of the seam that does not depend on distributed autograd; the other one is
// dist_autograd_bridge.h.
//
// Thread safety: all methods may be called from any thread.
// Lifetime: it must outlive the attached reducers.
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
  // Waits until nothing is left of a failed pass. Called before each forward and before a change of
  // the group. This takes a second or so, because the group on which the pass waits has been
  // aborted.
  virtual void settle(const std::shared_ptr<ddp_internal::Reducer>& reducer) = 0;
};

}  // namespace weft
