// Asks the kernel how long processes of this machine have waited for a processor.
//
// A worker that waits for a processor is slow, not dead. Only its serving and clock threads count;
// their names identify them. Threads that compute may wait all the time while the worker answers.
//
// Thread safety: none. The caller makes one call at a time.
// Blocking: it reads small files of /proc.
// Errors: a file that cannot be read counts as no wait.
// Protocol: docs/membership.md, "A slow worker is not a dead one".
#pragma once

#include <cstdint>
#include <map>
#include <optional>
#include <string>

#include "weft/base/clock.h"

namespace weft::rpc_internal {

// Identifies a process for other processes on its machine.
struct HostProcess {
  std::string host;      // boot id and pid namespace; empty: not known
  uint64_t pid = 0;      // in that namespace
  uint64_t started = 0;  // clock ticks after boot; tells apart processes that had the same pid
};

class ProcessorWaits {
 public:
  // `proc`: the folder of the kernel's files.
  explicit ProcessorWaits(std::string proc = "/proc");

  const HostProcess& self() const { return self_; }
  // Begins a look. Processes for which the last look did not ask are forgotten.
  void begin(TimePoint now);
  // Returns how long a thread of `process` has waited since the last look; of its threads that
  // count, the one that waited longest. Zero if the last look did not ask for this process, or if
  // the process is on another machine, stopped or gone.
  Nanoseconds of(const HostProcess& process);

 private:
  struct Thread {
    std::string schedstat;  // the file's text at the last look
    uint64_t waited = 0;    // ns, all waits that were over at the last look
    Nanoseconds told{0};    // the part of the current wait that `of` has returned already
  };
  struct Watch {
    uint64_t started = 0;
    uint64_t look = 0;  // number of the last look that asked
    Nanoseconds waited{0};
    std::map<std::string, std::optional<Thread>> threads;  // by id; nullopt: it does not count
  };

  // Returns the words of PID/stat after the process name, which may hold any character. Empty if
  // there is no such file.
  std::string stat(const std::string& folder) const;
  bool matches(const HostProcess& process) const;
  Nanoseconds look_at(const std::string& folder, Thread& thread) const;

  const std::string proc_;
  HostProcess self_;
  TimePoint now_;
  Nanoseconds since_last_{0};
  uint64_t look_ = 0;
  std::map<uint64_t, Watch> watches_;  // by pid
};

}  // namespace weft::rpc_internal
