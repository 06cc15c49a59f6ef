// Runs tasks one after the other, in the order in which they came, on a thread of its own.
//
// Thread safety: `run` may be called from any thread.
// Lifetime: the destructor waits for the task that runs and destroys the others unrun; on the
// thread itself (a task may hold the last handle) it waits for nothing.
// Blocking: tasks may block; those behind them wait.
#pragma once

#include <memory>
#include <thread>

#include "absl/functional/any_invocable.h"

namespace weft::internal {

class SerialThread {
 public:
  using Task = absl::AnyInvocable<void()>;

  SerialThread();
  ~SerialThread();
  SerialThread(const SerialThread&) = delete;
  SerialThread& operator=(const SerialThread&) = delete;

  // Tasks do not throw.
  void run(Task task);

 private:
  struct Queue;
  const std::shared_ptr<Queue> queue_;  // shared with the thread, which may outlive this
  std::thread thread_;
};

}  // namespace weft::internal
