// Runs tasks on the thread that waits for what they do, so that nothing has to wake another thread.
//
// Thread safety: all methods may be called from any thread.
// Lifetime: `later` outlives this object and everything that is scheduled on it; whoever schedules
// or closes keeps this object meanwhile.
// Blocking: only run().
#pragma once

#include <deque>

#include "weft/async/executor.h"
#include "weft/base/mutex.h"

namespace weft::dist_autograd_internal {

class CallerExecutor final : public Executor {
 public:
  // `later` gets what is left when nobody waits here any more.
  explicit CallerExecutor(Executor& later) : later_(later) {}

  void schedule(Task task) override ABSL_LOCKS_EXCLUDED(mutex_);
  bool idle() const override ABSL_LOCKS_EXCLUDED(mutex_);
  // Runs tasks on the calling thread until close(). Once.
  void run() ABSL_LOCKS_EXCLUDED(mutex_);
  // Ends run(), also from inside a task. What is queued, and whatever comes, goes to `later`.
  void close() ABSL_LOCKS_EXCLUDED(mutex_);

 private:
  bool next(Task& task) ABSL_LOCKS_EXCLUDED(mutex_);  // false: closed
  void wait() ABSL_LOCKS_EXCLUDED(mutex_);

  Executor& later_;
  mutable Mutex mutex_;
  CondVar changed_;
  std::deque<Task> queue_ ABSL_GUARDED_BY(mutex_);
  bool running_ ABSL_GUARDED_BY(mutex_) = false;  // a task
  bool closed_ ABSL_GUARDED_BY(mutex_) = false;
};

}  // namespace weft::dist_autograd_internal
