// Starts threads. A system may refuse one (RLIMIT_NPROC, the pids limit of a cgroup, no memory for
// its stack): here that is an error, where std::thread throws on a thread that catches nothing.
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

// Threads of these names answer heartbeats. Other workers of the host ask the kernel how long they
// waited for a processor (docs/membership.md).
inline constexpr char kClockThread[] = "weft clock";
inline constexpr char kServingThread[] = "weft serving";

// Runs `run` on a new thread. `purpose` completes "no thread can be started for", and gives the
// thread its name, what debuggers and top show: "a part" is "weft part", up to 15 bytes. Without
// one it would have the name of the thread that starts it.
absl::StatusOr<std::thread> start_thread(absl::string_view purpose, absl::AnyInvocable<void()> run);
// For objects that are nothing without their thread: throws RpcError.
std::thread start_needed_thread(absl::string_view purpose, absl::AnyInvocable<void()> run);

// Whether the system has refused one in this process, as far as start_thread knows.
bool threads_were_refused();

// For tests: while it lives, start_thread refuses threads in this process as the system does, but
// for the first `more`. One at a time.
class ThreadLimit {
 public:
  explicit ThreadLimit(int more);
  ~ThreadLimit();
  ThreadLimit(const ThreadLimit&) = delete;
  ThreadLimit& operator=(const ThreadLimit&) = delete;

  // How many were refused since then.
  int refused() const;
};

}  // namespace weft
