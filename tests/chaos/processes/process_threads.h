// Limits the threads of a running process: it moves the process into a cgroup of its own, whose
// pids limit allows only some more threads. RLIMIT_NPROC is no alternative, because it does not
// bind root.
//
// Thread safety: free functions; one at a time for a process.
// Errors: Unavailable if the pids controller of cgroup v1 does not exist or cannot be written.
#pragma once

#include <cstdint>
#include <sys/types.h>

#include "absl/status/status.h"

namespace weft::chaos {

// OK if this machine can limit threads.
absl::Status can_limit_threads();
// From now on the process may have at most `more` threads besides those that it has.
absl::Status limit_threads(pid_t pid, uint64_t more);
// Call it for each process that was limited, dead or alive.
void lift_thread_limit(pid_t pid);

}  // namespace weft::chaos
