// Runs the tasks that wait for the rendezvous store, one at a time, on a thread of their own.
//
// So a store that does not answer blocks no other thread of the worker.
//
// Thread safety: all methods may be called from any thread.
// Blocking: `run` and `stop`, up to their limits.
// Errors: if the system refuses the thread, tasks wait, and the next `schedule` tries to start it
// again. A worker calls `start` when it joins.
// Lifetime: the thread shares this object. A task that blocks may keep both after `stop`, so each
// task owns what it uses.
#pragma once

#include <deque>
#include <memory>
#include <thread>

#include "weft/async/executor.h"
#include "weft/base/clock.h"
#include "weft/base/mutex.h"

namespace weft::rpc_internal {

class StoreThread final : public Executor, public std::enable_shared_from_this<StoreThread> {
 public:
  // Starts the thread if it does not run yet. ResourceExhausted: the system refuses the thread.
  absl::Status start() ABSL_LOCKS_EXCLUDED(mutex_);
  // Starts the thread if it does not run yet. After `stop`, the task is dropped.
  void schedule(Task task) override ABSL_LOCKS_EXCLUDED(mutex_);
  bool idle() const override ABSL_LOCKS_EXCLUDED(mutex_);
  // Schedules `task` and waits until it has run, but at most for `at_most`.
  void run(Task task, Nanoseconds at_most);
  // Drops the waiting tasks, and waits up to `moment` for the running task; then it detaches the
  // thread. A task must not call it. Idempotent.
  void stop(Nanoseconds moment = std::chrono::milliseconds(100)) ABSL_LOCKS_EXCLUDED(mutex_);

 private:
  absl::Status start_locked() ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);
  void work() ABSL_LOCKS_EXCLUDED(mutex_);

  mutable Mutex mutex_;
  CondVar changed_;
  std::deque<Task> tasks_ ABSL_GUARDED_BY(mutex_);
  std::thread thread_ ABSL_GUARDED_BY(mutex_);
  bool running_ ABSL_GUARDED_BY(mutex_) = false;
  bool stopping_ ABSL_GUARDED_BY(mutex_) = false;
};

}  // namespace weft::rpc_internal
