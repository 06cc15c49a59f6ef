// Provides time and timers to all other parts, so that tests and the simulator can control time.
//
// Thread safety: all methods may be called from any thread.
// Lifetime: a clock must outlive every object that uses it.
// Blocking: callbacks run on the clock's thread. They must be short and must not block.
#pragma once

#include <chrono>
#include <cstdint>
#include <map>
#include <memory>
#include <thread>
#include <utility>

#include "absl/functional/any_invocable.h"
#include "absl/time/time.h"
#include "weft/base/mutex.h"

namespace weft {

using TimePoint = std::chrono::steady_clock::time_point;  // monotonic, never on the wire
using Nanoseconds = std::chrono::nanoseconds;

inline constexpr TimePoint kNever = TimePoint::max();

// How long something may take. Converts from std::chrono and absl durations. Zero and infinity
// both mean "no limit", and so do ten years and more. Each other positive duration is a limit,
// however short. A negative duration becomes a limit of 1 ns.
class Timeout {
 public:
  constexpr Timeout() = default;
  template <class Rep, class Period>
  Timeout(std::chrono::duration<Rep, Period> duration)  // NOLINT: {.timeout = 5s}
      : limit_(checked(to_absl(duration))), set_(true) {}
  Timeout(absl::Duration duration)  // NOLINT: {.timeout = absl::InfiniteDuration()}
      : limit_(checked(duration)), set_(true) {}

  bool is_set() const { return set_; }
  bool infinite() const { return limit_ == Nanoseconds::max(); }
  Nanoseconds limit() const { return limit_; }
  Timeout or_else(Timeout fallback) const { return set_ ? *this : fallback; }
  // The deadline of work that starts at `now`. kNever: no limit.
  TimePoint deadline_from(TimePoint now) const {
    if (infinite() || kNever - now < limit_) return kNever;
    return now + limit_;
  }

 private:
  static Nanoseconds checked(absl::Duration duration);
  template <class Rep, class Period>
  static absl::Duration to_absl(std::chrono::duration<Rep, Period> duration) {
    if constexpr (requires { absl::FromChrono(duration); }) {
      return absl::FromChrono(duration);
    } else {  // 0.5s, days
      return absl::Seconds(std::chrono::duration<double>(duration).count());
    }
  }

  Nanoseconds limit_ = Nanoseconds::max();
  bool set_ = false;
};

struct TimerId {
  TimePoint when;
  uint64_t number = 0;
  friend auto operator<=>(const TimerId&, const TimerId&) = default;
};

class Clock {
 public:
  using Callback = absl::AnyInvocable<void()>;

  virtual ~Clock() = default;
  virtual TimePoint now() = 0;
  // Runs `callback` once, not before `when`.
  virtual TimerId call_at(TimePoint when, Callback callback) = 0;
  // True: the callback has not run and never will. False: it has run, or it is running.
  virtual bool cancel(TimerId timer) = 0;
};

// The machine's monotonic clock. One thread runs all callbacks.
class SystemClock final : public Clock {
 public:
  // Throws RpcError (ResourceExhausted) if the system refuses its thread.
  SystemClock();
  ~SystemClock() override;

  TimePoint now() override { return std::chrono::steady_clock::now(); }
  TimerId call_at(TimePoint when, Callback callback) override ABSL_LOCKS_EXCLUDED(state_->mutex);
  bool cancel(TimerId timer) override ABSL_LOCKS_EXCLUDED(state_->mutex);

 private:
  struct State {
    Mutex mutex;
    CondVar changed;
    std::map<TimerId, Callback> timers ABSL_GUARDED_BY(mutex);
    uint64_t next_number ABSL_GUARDED_BY(mutex) = 1;
    bool stopping ABSL_GUARDED_BY(mutex) = false;
  };
  static void run(State& state);

  // Shared with the thread, because a callback may drop the last reference to the owner of this
  // clock. Then the thread destroys this object and still needs the state.
  const std::shared_ptr<State> state_ = std::make_shared<State>();
  std::thread thread_;
};

// A clock that moves only in `advance`, which runs the due timers in the order of their times.
class ManualClock final : public Clock {
 public:
  TimePoint now() override ABSL_LOCKS_EXCLUDED(mutex_);
  TimerId call_at(TimePoint when, Callback callback) override ABSL_LOCKS_EXCLUDED(mutex_);
  bool cancel(TimerId timer) override ABSL_LOCKS_EXCLUDED(mutex_);

  void advance(Nanoseconds step) ABSL_LOCKS_EXCLUDED(mutex_);
  // The time of the earliest timer; kNever if there is none.
  TimePoint next_timer() ABSL_LOCKS_EXCLUDED(mutex_);

 private:
  Mutex mutex_;
  TimePoint now_ ABSL_GUARDED_BY(mutex_) = TimePoint() + std::chrono::hours(1);
  std::map<TimerId, Callback> timers_ ABSL_GUARDED_BY(mutex_);
  uint64_t next_number_ ABSL_GUARDED_BY(mutex_) = 1;
};

}  // namespace weft
