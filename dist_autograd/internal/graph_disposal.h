// Destroys the graphs and gradients that ended passes and contexts leave behind.
//
// Their destructors may run user code, so they run on a thread of the executor. While a piece of
// work of a pass runs here, destruction is deferred until the work ends.
//
// Thread safety: all methods may be called from any thread.
// Lifetime: the executor must exist as long as methods are called.
#pragma once

#include <memory>
#include <vector>

#include "weft/async/executor.h"
#include "weft/base/mutex.h"

namespace weft::dist_autograd_internal {

class GraphDisposal {
 public:
  explicit GraphDisposal(Executor& executor) : executor_(executor) {}

  // Each begin_work() needs one end_work(). If objects wait, end_work() destroys them itself on a
  // thread of the executor, and schedules their destruction on any other thread.
  void begin_work() ABSL_LOCKS_EXCLUDED(mutex_);
  void end_work() ABSL_LOCKS_EXCLUDED(mutex_);
  // Never runs a destructor itself.
  void destroy(std::vector<std::shared_ptr<void>> dropped) ABSL_LOCKS_EXCLUDED(mutex_);

 private:
  Executor& executor_;
  Mutex mutex_;
  size_t work_ ABSL_GUARDED_BY(mutex_) = 0;  // pieces of work between begin and end
  std::vector<std::shared_ptr<void>> dropped_ ABSL_GUARDED_BY(mutex_);
};

}  // namespace weft::dist_autograd_internal
