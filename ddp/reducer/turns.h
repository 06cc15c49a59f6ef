// Lets threads act one after the other, in the order of their tickets. No lock is held while a
// thread acts.
//
// Thread safety: all methods may be called from any thread.
// Blocking: the constructor of Turn waits until all earlier turns are over.
#pragma once

#include <cstdint>

#include "weft/base/mutex.h"

namespace weft::ddp_internal {

class Turns {
 public:
  // Use every ticket for a Turn. Otherwise all later turns wait for ever.
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
