// A clock that tells the machine's time, but runs its timers only when fire() is called.
//
// Thread safety: all methods may be called from any thread.
#pragma once

#include <chrono>
#include <cstddef>
#include <cstdint>
#include <map>
#include <utility>
#include <vector>

#include "weft/base/clock.h"
#include "weft/base/mutex.h"

namespace weft::testing {

class HeldTimers final : public Clock {
 public:
  TimePoint now() override { return std::chrono::steady_clock::now(); }
  TimerId call_at(TimePoint when, Callback callback) override ABSL_LOCKS_EXCLUDED(mutex_) {
    MutexLock lock(mutex_);
    const TimerId id{when, ++last_};
    timers_.emplace(id, std::move(callback));
    return id;
  }
  bool cancel(TimerId timer) override ABSL_LOCKS_EXCLUDED(mutex_) {
    MutexLock lock(mutex_);
    return timers_.erase(timer) > 0;
  }
  // How many have not run and were not cancelled.
  size_t timers() const ABSL_LOCKS_EXCLUDED(mutex_) {
    MutexLock lock(mutex_);
    return timers_.size();
  }
  // Runs all timers that are due within `span` from now, on this thread and without the lock.
  void fire(Nanoseconds span) ABSL_LOCKS_EXCLUDED(mutex_) {
    std::vector<Callback> due;
    {
      MutexLock lock(mutex_);
      const TimePoint end = now() + span;
      while (!timers_.empty() && timers_.begin()->first.when <= end) {
        due.push_back(std::move(timers_.begin()->second));
        timers_.erase(timers_.begin());
      }
    }
    for (Callback& callback : due) callback();
  }

 private:
  mutable Mutex mutex_;
  uint64_t last_ ABSL_GUARDED_BY(mutex_) = 0;
  std::map<TimerId, Callback> timers_ ABSL_GUARDED_BY(mutex_);
};

}  // namespace weft::testing
