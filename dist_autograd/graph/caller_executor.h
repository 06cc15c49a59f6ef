// Runs tasks on the thread that waits for their result, so that no other thread has to wake up.
//
// Thread safety: all methods may be called from any thread.
// Lifetime: `later` must outlive this object and every task that is scheduled on it. A thread that
// calls schedule() or close() must keep this object alive during the call.
// Blocking: only run().
#pragma once

#include <deque>

#include "weft/async/executor.h"
#include "weft/base/mutex.h"

namespace weft::dist_autograd_internal {

class CallerExecutor final : public Executor {
 public:
  // `later` gets the tasks that are left after close().
  explicit CallerExecutor(Executor& later) : later_(later) {}

  void schedule(Task task) override ABSL_LOCKS_EXCLUDED(mutex_);
  bool idle() const override ABSL_LOCKS_EXCLUDED(mutex_);
  // Runs tasks on the calling thread until close(). Call it once.
  void run() ABSL_LOCKS_EXCLUDED(mutex_);
  // Makes run() return; a task may call it too. Queued and later tasks go to `later`.
  void close() ABSL_LOCKS_EXCLUDED(mutex_);

 private:
  // Takes the next task; `task` stays null if none is queued. Returns false if closed.
  bool next(Task& task) ABSL_LOCKS_EXCLUDED(mutex_);
  void wait() ABSL_LOCKS_EXCLUDED(mutex_);

  Executor& later_;
  mutable Mutex mutex_;
  CondVar changed_;
  std::deque<Task> queue_ ABSL_GUARDED_BY(mutex_);
  bool running_ ABSL_GUARDED_BY(mutex_) = false;  // run() runs a task
  bool closed_ ABSL_GUARDED_BY(mutex_) = false;
};

}  // namespace weft::dist_autograd_internal
