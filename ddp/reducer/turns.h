// Lets threads act one after the other, in the order in which they took their tickets, with no lock
// held meanwhile.
//
// Thread safety: all methods may be called from any thread.
// Blocking: the constructor of Turn, until all before it have ended.
#pragma once

#include <cstdint>

#include "weft/base/mutex.h"

namespace weft::ddp_internal {

class Turns {
 public:
  // Every ticket taken must be used for a Turn, or all behind it wait for ever.
  uint64_t take_ticket() ABSL_LOCKS_EXCLUDED(mutex_) {
    const MutexLock lock(mutex_);
    return tickets_++;
  }

  class Turn {
   public:
    Turn(Turns& turns, uint64_t ticket) : turns_(turns) {
      const MutexLock lock(turns_.mutex_);
      while (turns_.served_ != ticket) turns_.changed_.wait(turns_.mutex_);
    }
    ~Turn() {
      const MutexLock lock(turns_.mutex_);
      ++turns_.served_;
      turns_.changed_.notify_all();
    }
    Turn(const Turn&) = delete;
    Turn& operator=(const Turn&) = delete;

   private:
    Turns& turns_;
  };

 private:
  Mutex mutex_;
  CondVar changed_;
  uint64_t tickets_ ABSL_GUARDED_BY(mutex_) = 0;
  uint64_t served_ ABSL_GUARDED_BY(mutex_) = 0;
};

}  // namespace weft::ddp_internal
