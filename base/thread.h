// Starts named threads, and reports it as an error if the system refuses one.
//
// The system may refuse a thread: RLIMIT_NPROC, the pids limit of a cgroup, or no memory for a
// stack. In that case std::thread throws, often on a thread that catches nothing.
//
// Thread safety: all functions may be called from any thread.
// Errors: ResourceExhausted, which says what the thread was for. docs/threading.md says what a
// worker does then.
#pragma once

#include <thread>

#include "absl/functional/any_invocable.h"
#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"

namespace weft {

// Threads of these names answer heartbeats. Other workers of the host ask the kernel how long such
// threads waited for a processor (docs/membership.md).
inline constexpr char kClockThread[] = "weft clock";
inline constexpr char kServingThread[] = "weft serving";

// Runs `run` on a new thread. `purpose` completes the error text "no thread can be started for".
// It also gives the thread its name for debuggers and top: "a part" becomes "weft part", cut to 15
// bytes. Otherwise the new thread would have the name of the thread that starts it.
absl::StatusOr<std::thread> start_thread(absl::string_view purpose, absl::AnyInvocable<void()> run);
// As start_thread, but throws RpcError. For objects that cannot work without their thread.
std::thread start_needed_thread(absl::string_view purpose, absl::AnyInvocable<void()> run);

// Whether the system has refused a thread to start_thread in this process.
bool threads_were_refused();

// For tests: while this object exists, start_thread starts `more` threads in this process and then
// refuses further ones, as the system would. Only one such object may exist at a time.
class ThreadLimit {
 public:
  explicit ThreadLimit(int more);
  ~ThreadLimit();
  ThreadLimit(const ThreadLimit&) = delete;
  ThreadLimit& operator=(const ThreadLimit&) = delete;

  // How many threads it has refused.
  int refused() const;
};

}  // namespace weft
