// Runs the tasks that wait for the rendezvous store, one at a time, on a thread of their own.
//
// So a store that does not answer blocks no other thread of the worker.
//
// Thread safety: all methods may be called from any thread.
// Lifetime: the destructor stops the thread. A task that blocks may go on after `stop`, so each
// task owns what it uses.
// Blocking: `run` and `stop`, up to their limits.
// Errors: if the system refuses the thread, tasks wait, and the next `schedule` tries to start it
// again. A worker calls `start` when it joins.
#pragma once

#include "weft/async/executor.h"
#include "weft/async/serial_thread.h"

namespace weft::rpc_internal {

class StoreThread final : public Executor {
 public:
  ~StoreThread() override { stop(); }

  // Starts the thread if it does not run yet. ResourceExhausted: the system refuses the thread.
  absl::Status start() { return thread_.start(); }
  // Starts the thread if it does not run yet. After `stop`, the task is dropped.
  void schedule(Task task) override;
  bool idle() const override { return thread_.idle(); }
  // Schedules `task` and waits until it has run, but at most for `at_most`.
  void run(Task task, Nanoseconds at_most);
  // Drops the waiting tasks, and waits up to `moment` for the running task; then it leaves the
  // thread behind. Idempotent.
  void stop(Nanoseconds moment = std::chrono::milliseconds(100)) { thread_.stop(moment); }

 private:
  SerialThread thread_{SerialThread::StartLater{}, SerialThread::AtEnd::kDrop,
                       "questions to the rendezvous store"};
};

}  // namespace weft::rpc_internal
