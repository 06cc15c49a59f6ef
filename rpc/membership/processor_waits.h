// Asks the kernel how long processes of this machine have waited for a processor: a worker that
// waits for one is slow, not dead.
//
// Only the threads that serve a worker's connections and its clock count, known by their names:
// those that compute may wait all the time while the worker answers.
//
// Thread safety: none. Blocking: reads small files of /proc.
// Errors: what cannot be read counts as no wait.
// Protocol: docs/membership.md, "A slow worker is not a dead one".
#pragma once

#include <cstdint>
#include <map>
#include <optional>
#include <string>

#include "weft/base/clock.h"

namespace weft::rpc_internal {

// A process, as others on its machine can find it.
struct HostProcess {
  std::string host;      // boot id and pid namespace; empty: not known
  uint64_t pid = 0;      // in that namespace
  uint64_t started = 0;  // clock ticks after boot: a later process with this pid is another one
};

class ProcessorWaits {
 public:
  // `proc`: where the kernel's files are.
  explicit ProcessorWaits(std::string proc = "/proc");

  const HostProcess& self() const { return self_; }
  // Begins a look. Forgets the processes that the last look did not ask for.
  void begin(TimePoint now);
  // How much longer, since the last look, the thread of `process` that waited most has waited. Zero
  // if that look did not ask; if the process is elsewhere, stopped or gone.
  Nanoseconds of(const HostProcess& process);

 private:
  struct Thread {
    std::string schedstat;  // as it was read
    uint64_t waited = 0;    // ns, until it last got a processor
    Nanoseconds told{0};    // of the wait that has not ended
  };
  struct Watch {
    uint64_t started = 0;
    uint64_t look = 0;  // the last
    Nanoseconds waited{0};
    std::map<std::string, std::optional<Thread>> threads;  // by id; nullopt: it does not count
  };

  // The words of PID/stat after the name, which may hold anything; empty if there is no such file.
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
