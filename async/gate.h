// Lets timers, answers and what was deferred in to a driver while it lives.
//
// Thread safety: all methods may be called from any thread.
// Lifetime: shared with whoever may come after the driver's end; the driver closes it before that.
// Blocking: `close` waits for those that are inside, so it must not be called from there.
#pragma once

#include "weft/base/mutex.h"

namespace weft::async_internal {

template <class Driver>
class Gate {
 public:
  explicit Gate(Driver& driver) : driver_(&driver) {}

  // Runs `f(driver)` here, without a lock; nothing once the gate is closed.
  template <class F>
  void enter(F f) ABSL_LOCKS_EXCLUDED(mutex_) {
    if (Driver* const driver = come_in()) {
      const Visit visit(*this);  // also ends if `f` throws
      f(*driver);
    }
  }
  void close() ABSL_LOCKS_EXCLUDED(mutex_) {
    MutexLock lock(mutex_);
    driver_ = nullptr;
    while (inside_ > 0) left_.wait(mutex_);
  }

 private:
  class Visit {
   public:
    explicit Visit(Gate& gate) : gate_(gate) {}
    ~Visit() {
      MutexLock lock(gate_.mutex_);
      if (--gate_.inside_ == 0) gate_.left_.notify_all();
    }
    Visit(const Visit&) = delete;
    Visit& operator=(const Visit&) = delete;

   private:
    Gate& gate_;
  };

  // Null once the gate is closed; else it counts until a Visit ends.
  Driver* come_in() ABSL_LOCKS_EXCLUDED(mutex_) {
    MutexLock lock(mutex_);
    if (driver_ != nullptr) ++inside_;
    return driver_;
  }

  Mutex mutex_;
  CondVar left_;
  Driver* driver_ ABSL_GUARDED_BY(mutex_);
  int inside_ ABSL_GUARDED_BY(mutex_) = 0;
};

}  // namespace weft::async_internal
