// Takes the threads away from a process that runs: a cgroup of its own, whose pids limit leaves it
// some more than it has. RLIMIT_NPROC would not do: it does not bind root.
//
// Thread safety: free functions; one at a time for a process.
// Errors: Unavailable, where the pids controller of cgroup v1 is not there to write to.
#pragma once

#include <cstdint>
#include <sys/types.h>

#include "absl/status/status.h"

namespace weft::chaos {

// Whether this machine can.
absl::Status can_limit_threads();
// From now on the process gets `more` threads at most, besides those that it has.
absl::Status limit_threads(pid_t pid, uint64_t more);
// To be called for each process that was limited, dead or alive.
void lift_thread_limit(pid_t pid);

}  // namespace weft::chaos
