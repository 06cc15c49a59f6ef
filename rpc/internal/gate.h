// Lets timers, answers and what was put off in to a driver while it lives.
//
// Thread safety: all methods may be called from any thread.
// Lifetime: shared with whoever may come after the driver's end; the driver closes it before that.
// Blocking: `close` waits for those that are inside, so it must not be called from there.
#pragma once

#include "weft/base/mutex.h"

namespace weft::internal {

template <class Driver>
class Gate {
 public:
  explicit Gate(Driver& driver) : driver_(&driver) {}

  // Runs `f(driver)` here, without a lock; nothing once the gate is closed.
  template <class F>
  void enter(F f) ABSL_LOCKS_EXCLUDED(mutex_) {
    Driver* driver = nullptr;
    {
      MutexLock lock(mutex_);
      if (driver_ == nullptr) return;
      driver = driver_;
      ++inside_;
    }
    f(*driver);
    MutexLock lock(mutex_);
    if (--inside_ == 0) left_.notify_all();
  }
  void close() ABSL_LOCKS_EXCLUDED(mutex_) {
    MutexLock lock(mutex_);
    driver_ = nullptr;
    while (inside_ > 0) left_.wait(mutex_);
  }

 private:
  Mutex mutex_;
  CondVar left_;
  Driver* driver_ ABSL_GUARDED_BY(mutex_);
  int inside_ ABSL_GUARDED_BY(mutex_) = 0;
};

}  // namespace weft::internal
