#include "weft/base/clock.h"

namespace weft {

Nanoseconds Timeout::checked(absl::Duration duration) {
  if (duration == absl::ZeroDuration()) return Nanoseconds::max();
  if (duration < absl::ZeroDuration()) return Nanoseconds(1);  // already late
  const absl::Duration longest = absl::Hours(24 * 365 * 10);
  if (duration >= longest) return Nanoseconds::max();
  const Nanoseconds rounded = absl::ToChronoNanoseconds(duration);
  return rounded.count() > 0 ? rounded : Nanoseconds(1);
}

SystemClock::SystemClock() : thread_([this] { run(); }) {}

SystemClock::~SystemClock() {
  {
    MutexLock lock(mutex_);
    stopping_ = true;
  }
  changed_.notify_one();
  thread_.join();
}

TimerId SystemClock::call_at(TimePoint when, Callback callback) {
  TimerId id;
  bool earliest = false;
  {
    MutexLock lock(mutex_);
    id = {when, next_number_++};
    const auto added = timers_.emplace(id, std::move(callback)).first;
    earliest = added == timers_.begin();
  }
  if (earliest) changed_.notify_one();
  return id;
}

bool SystemClock::cancel(TimerId timer) {
  Callback dropped;  // dies outside the lock: it may own anything
  MutexLock lock(mutex_);
  auto found = timers_.find(timer);
  if (found == timers_.end()) return false;
  dropped = std::move(found->second);
  timers_.erase(found);
  return true;
}

void SystemClock::run() {
  while (true) {
    Callback due;
    {
      MutexLock lock(mutex_);
      while (true) {
        if (stopping_) return;
        if (timers_.empty()) {
          changed_.wait(mutex_);
          continue;
        }
        auto first = timers_.begin();
        if (first->first.when <= now()) {
          due = std::move(first->second);
          timers_.erase(first);
          break;
        }
        changed_.wait_until(mutex_, first->first.when);
      }
    }
    due();
  }
}

TimePoint ManualClock::now() {
  MutexLock lock(mutex_);
  return now_;
}

TimerId ManualClock::call_at(TimePoint when, Callback callback) {
  MutexLock lock(mutex_);
  const TimerId id{when, next_number_++};
  timers_.emplace(id, std::move(callback));
  return id;
}

bool ManualClock::cancel(TimerId timer) {
  Callback dropped;
  MutexLock lock(mutex_);
  auto found = timers_.find(timer);
  if (found == timers_.end()) return false;
  dropped = std::move(found->second);
  timers_.erase(found);
  return true;
}

TimePoint ManualClock::next_timer() {
  MutexLock lock(mutex_);
  return timers_.empty() ? kNever : timers_.begin()->first.when;
}

void ManualClock::advance(Nanoseconds step) {
  TimePoint until;
  {
    MutexLock lock(mutex_);
    until = now_ + step;
  }
  while (true) {
    Callback due;
    {
      MutexLock lock(mutex_);
      auto first = timers_.begin();
      if (first == timers_.end() || first->first.when > until) {
        now_ = until;
        return;
      }
      now_ = std::max(now_, first->first.when);
      due = std::move(first->second);
      timers_.erase(first);
    }
    due();
  }
}

}  // namespace weft
