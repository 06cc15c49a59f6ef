// Lets callbacks (timers, replies, deferred work) use a driver only while the driver exists.
//
// Thread safety: all methods may be called from any thread.
// Lifetime: callbacks that may run after the driver's destruction share ownership of the gate. The
// driver closes the gate before it is destroyed.
// Blocking: `close` waits until all callbacks have left the gate, so no callback may call it.
#pragma once

#include "weft/base/mutex.h"

namespace weft::async_internal {

template <class Driver>
class Gate {
 public:
  explicit Gate(Driver& driver) : driver_(&driver) {}

  // Runs `f(driver)` inside this call, without a lock. Does nothing if the gate is closed.
  template <class F>
  void enter(F f) ABSL_LOCKS_EXCLUDED(mutex_) {
    if (Driver* const driver = come_in()) {
      const Visit visit(*this);  // leaves the gate even if `f` throws
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

  // Null if the gate is closed. Otherwise the caller counts as inside until its Visit is destroyed.
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
