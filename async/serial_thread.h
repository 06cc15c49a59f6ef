// Runs tasks one after the other, in the order in which they were given, on a thread of its own.
//
// Thread safety: `run` may be called from any thread.
// Lifetime: the destructor waits for the running task. It runs the queued tasks first (kRun) or
// destroys them unrun (kDrop). If it runs on the thread itself, because a task held the last
// handle, it does not wait. The thread then stops by itself after the same tasks.
// Blocking: tasks may block; the tasks behind them wait.
// Errors: if the system refuses the thread, the constructor throws RpcError (ResourceExhausted),
// which names the purpose of the thread.
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
  // Stops the thread now, so that the destructor does not wait. The thread stops by itself after
  // the tasks that the destructor would have let it run.
  void detach();

 private:
  struct Queue;
  void end();

  const AtEnd at_end_;
  const std::shared_ptr<Queue> queue_;  // shared with the thread, which may outlive this
  std::thread thread_;
};

}  // namespace weft
