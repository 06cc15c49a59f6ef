// Runs what waits for the rendezvous store, one after the other, on a thread of its own: a store
// that does not answer holds up nobody else.
//
// Thread safety: all methods may be called from any thread.
// Errors: where the system refuses the thread, tasks wait, and the next one asks for it again. A
// worker starts it when it joins.
// Lifetime: shared with its thread, which a task may keep after `stop`; tasks own what they use.
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
  // ResourceExhausted: the system refuses the thread.
  absl::Status start() ABSL_LOCKS_EXCLUDED(mutex_);
  // The first task starts the thread, if nobody has.
  void schedule(Task task) override ABSL_LOCKS_EXCLUDED(mutex_);
  bool idle() const override ABSL_LOCKS_EXCLUDED(mutex_);
  // Schedules `task` and waits for it, but no longer than that.
  void run(Task task, Nanoseconds at_most);
  // Drops what waits, and gives the task that runs a moment to end. Not from a task. Idempotent.
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
