// Runs tasks one after the other, in the order in which they were given, on a thread of its own.
//
// Thread safety: all methods may be called from any thread.
// Lifetime: the destructor stops as `stop` does, without a limit of time. If it runs on the thread
// itself, because a task held the last handle, it does not wait. The thread then stops by itself
// after the tasks that AtEnd lets it run. A thread that is left behind shares nothing with this
// object: its tasks own what they use.
// Blocking: `stop` and the destructor. Tasks may block; the tasks behind them wait.
// Errors: if the system refuses the thread, `start` returns ResourceExhausted, which names the
// purpose of the thread. The constructor that starts the thread throws it as RpcError.
#pragma once

#include <memory>
#include <string>

#include "absl/functional/any_invocable.h"
#include "absl/status/status.h"
#include "absl/strings/string_view.h"
#include "weft/base/clock.h"

namespace weft {

class SerialThread {
 public:
  using Task = absl::AnyInvocable<void()>;
  // What happens at the end to the tasks that have not begun. kDrop: they are destroyed. kRun: they
  // run.
  enum class AtEnd { kDrop, kRun };
  struct StartLater {};

  explicit SerialThread(AtEnd at_end = AtEnd::kDrop, absl::string_view purpose = "a queue");
  // Starts no thread yet. Tasks wait for `start`.
  SerialThread(StartLater, AtEnd at_end, absl::string_view purpose);
  ~SerialThread();
  SerialThread(const SerialThread&) = delete;
  SerialThread& operator=(const SerialThread&) = delete;

  // No effect if the thread has been started, or after the end. After an error, it may be called
  // again.
  absl::Status start();
  // Tasks do not throw. A task that is given after the end is destroyed unrun.
  void run(Task task);
  // True: no task waits, and none runs.
  bool idle() const;
  // Ends the thread, and waits up to `at_most` for the tasks that it still runs. After that, the
  // thread is left behind and stops by itself. Idempotent.
  void stop(Nanoseconds at_most = Nanoseconds::max());
  // Ends the thread without waiting: it stops by itself.
  void detach();

 private:
  struct Queue;
  void end();

  const AtEnd at_end_;
  const std::string purpose_;
  const std::shared_ptr<Queue> queue_;  // shared with the thread, which may outlive this
};

}  // namespace weft
