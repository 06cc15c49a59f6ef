#include "weft/dist_autograd/internal/graph_disposal.h"

#include <iterator>
#include <utility>

namespace weft::dist_autograd_internal {

void GraphDisposal::begin_work() {
  MutexLock lock(mutex_);
  ++work_;
}

void GraphDisposal::end_work() {
  std::vector<std::shared_ptr<void>> dropped;
  {
    MutexLock lock(mutex_);
    --work_;
    dropped.swap(dropped_);
  }
  if (!dropped.empty() && Executor::current() != &executor_) {
    executor_.schedule([dropped = std::move(dropped)] {});
  }
}

void GraphDisposal::destroy(std::vector<std::shared_ptr<void>> dropped) {
  {
    MutexLock lock(mutex_);
    if (work_ > 0) {
      dropped_.insert(dropped_.end(), std::make_move_iterator(dropped.begin()),
                      std::make_move_iterator(dropped.end()));
      return;
    }
  }
  executor_.schedule([dropped = std::move(dropped)] {});
}

}  // namespace weft::dist_autograd_internal
