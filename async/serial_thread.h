// Runs tasks one after the other, in the order in which they came, on a thread of its own.
//
// Thread safety: `run` may be called from any thread.
// Lifetime: the destructor waits for the task that runs, and runs the others first or destroys them
// unrun (AtEnd). On the thread itself (a task may hold the last handle) it waits for nothing: the
// thread ends by itself after the same tasks.
// Blocking: tasks may block; those behind them wait.
// Errors: the constructor throws RpcError (ResourceExhausted, naming what the thread is for) if the
// system refuses it.
#pragma once

#include <memory>
#include <thread>

#include "absl/functional/any_invocable.h"
#include "absl/strings/string_view.h"

namespace weft {

class SerialThread {
 public:
  using Task = absl::AnyInvocable<void()>;
  enum class AtEnd { kDrop, kRun };

  explicit SerialThread(AtEnd at_end = AtEnd::kDrop, absl::string_view purpose = "a queue");
  ~SerialThread();
  SerialThread(const SerialThread&) = delete;
  SerialThread& operator=(const SerialThread&) = delete;

  // Tasks do not throw.
  void run(Task task);
  // Now instead of in the destructor, which will wait for nothing then: the thread ends by itself
  // after the same tasks.
  void detach();

 private:
  struct Queue;
  void end();

  const AtEnd at_end_;
  const std::shared_ptr<Queue> queue_;  // shared with the thread, which may outlive this
  std::thread thread_;
};

}  // namespace weft
