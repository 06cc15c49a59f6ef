// Detects a wait that is far too long. It writes the stacks of all threads and exits with code 3.
//
// Every wait of a chaos worker is announced with its bound. A wait of more than twice its bound is
// a hang. Only time in which this process ran counts, so SIGSTOP and a sleeping machine are no
// hang. The stacks go to standard error, one thread after the other, in the format of
// backtrace_symbols_fd (c++filt and addr2line read it).
//
// Thread safety: all methods may be called from any thread. A process may have only one, because it
// owns a signal.
#pragma once

#include <chrono>
#include <cstdint>
#include <map>
#include <string>
#include <thread>

#include "weft/base/mutex.h"

namespace weft::chaos {

class Watchdog {
 public:
  using Nanoseconds = std::chrono::nanoseconds;

  Watchdog();
  ~Watchdog();
  Watchdog(const Watchdog&) = delete;
  Watchdog& operator=(const Watchdog&) = delete;

  // `what` outlives the wait. `token` tells waits of one kind apart. Returns the number for `end`.
  uint64_t begin(const char* what, uint64_t token, Nanoseconds bound) ABSL_LOCKS_EXCLUDED(mutex_);
  void end(uint64_t wait) ABSL_LOCKS_EXCLUDED(mutex_);

  // A wait of this thread, as long as this object lives.
  class Scope {
   public:
    Scope(Watchdog& watchdog, const char* what, Nanoseconds bound)
        : watchdog_(watchdog), wait_(watchdog.begin(what, 0, bound)) {}
    ~Scope() { watchdog_.end(wait_); }
    Scope(const Scope&) = delete;
    Scope& operator=(const Scope&) = delete;

   private:
    Watchdog& watchdog_;
    const uint64_t wait_;
  };

  // Writes the stacks of all other threads of this process to standard error.
  static void dump_stacks();

 private:
  struct Wait {
    const char* what;
    uint64_t token;
    Nanoseconds bound;
    Nanoseconds begun;  // in time that this process ran
  };

  void watch() ABSL_LOCKS_EXCLUDED(mutex_);

  Mutex mutex_;
  CondVar stopped_;
  bool stopping_ ABSL_GUARDED_BY(mutex_) = false;
  Nanoseconds awake_ ABSL_GUARDED_BY(mutex_){0};
  uint64_t next_ ABSL_GUARDED_BY(mutex_) = 1;
  std::map<uint64_t, Wait> waits_ ABSL_GUARDED_BY(mutex_);
  std::thread thread_;  // last: it uses all of the above
};

}  // namespace weft::chaos
