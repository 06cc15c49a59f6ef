#include "weft/base/clock.h"

#include <pthread.h>

#include "weft/base/thread.h"

namespace weft {

Nanoseconds Timeout::checked(absl::Duration duration) {
  if (duration == absl::ZeroDuration()) return Nanoseconds::max();
  if (duration < absl::ZeroDuration()) return Nanoseconds(1);  // already late
  const absl::Duration longest = absl::Hours(24 * 365 * 10);
  if (duration >= longest) return Nanoseconds::max();
  const Nanoseconds rounded = absl::ToChronoNanoseconds(duration);
  return rounded.count() > 0 ? rounded : Nanoseconds(1);
}

SystemClock::SystemClock()
    : thread_(start_needed_thread("a clock", [state = state_] { run(*state); })) {}

SystemClock::~SystemClock() {
  // Callbacks may own anything, so they are destroyed outside the lock, after the thread's end
  // (unless a callback on that very thread destroys this clock).
  std::map<TimerId, Callback> dropped;
  {
    MutexLock lock(state_->mutex);
    state_->stopping = true;
    dropped.swap(state_->timers);
  }
  state_->changed.notify_one();
  // A callback may destroy the clock. Its thread cannot join itself, and stops after the callback.
  if (thread_.get_id() == std::this_thread::get_id()) {
    thread_.detach();
  } else {
    thread_.join();
  }
}

TimerId SystemClock::call_at(TimePoint when, Callback callback) {
  TimerId id;
  bool earliest = false;
  {
    MutexLock lock(state_->mutex);
    id = {when, state_->next_number++};
    const auto added = state_->timers.emplace(id, std::move(callback)).first;
    earliest = added == state_->timers.begin();
  }
  if (earliest) state_->changed.notify_one();
  return id;
}

bool SystemClock::cancel(TimerId timer) {
  Callback dropped;  // destroyed outside the lock, because it may own anything
  MutexLock lock(state_->mutex);
  auto found = state_->timers.find(timer);
  if (found == state_->timers.end()) return false;
  dropped = std::move(found->second);
  state_->timers.erase(found);
  return true;
}

void SystemClock::run(State& state) {
  pthread_setname_np(pthread_self(), kClockThread);
  while (true) {
    Callback due;
    {
      MutexLock lock(state.mutex);
      while (true) {
        if (state.stopping) return;
        if (state.timers.empty()) {
          state.changed.wait(state.mutex);
          continue;
        }
        auto first = state.timers.begin();
        if (first->first.when <= std::chrono::steady_clock::now()) {
          due = std::move(first->second);
          state.timers.erase(first);
          break;
        }
        state.changed.wait_until(state.mutex, first->first.when);
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
  while (true) {  // a callback may add timers that are due within this step
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
