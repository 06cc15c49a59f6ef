// Waits for an event of another thread or process: first it spins for a moment, if that is worth
// while, and then it sleeps. A thread that spins yields between two looks.
//
// Thread safety: one thread at a time waits; `spins` may be called from any thread.
#pragma once

#include <atomic>
#include <chrono>
#include <cstdint>
#include <ctime>
#include <thread>

#include "weft/async/spin_policy.h"

namespace weft {

class Spinner {
 public:
  using Nanoseconds = SpinPolicy::Nanoseconds;

  // `limit`: how long one wait may spin; 0: never.
  explicit Spinner(Nanoseconds limit) : policy_(limit) {}

  // Calls `poll` until it returns true, if spinning is worth while. Otherwise, or if nothing came
  // within the limit, it calls `sleep` once. `poll` must not block. `sleep` returns when something
  // has come, or when the caller must look at something else. While `vain` returns true, spinning
  // is of no use: it sleeps at once, and learns nothing.
  template <class Poll, class Sleep, class Vain>
  void wait(Poll&& poll, Sleep&& sleep, Vain&& vain) {
    if (policy_.worth_while()) {
      if (!spin(poll, vain)) sleep();
      return;
    }
    const Clock::time_point begun = Clock::now();
    sleep();
    policy_.slept(Clock::now() - begun);
  }
  template <class Poll, class Sleep>
  void wait(Poll&& poll, Sleep&& sleep) {
    wait(poll, sleep, [] { return false; });
  }

  // How many waits began with spinning.
  uint64_t spins() const { return spins_.load(std::memory_order_relaxed); }

 private:
  using Clock = std::chrono::steady_clock;

  // The processor time that this thread has used.
  static Nanoseconds used_time() {
    timespec used{};
    clock_gettime(CLOCK_THREAD_CPUTIME_ID, &used);
    return std::chrono::seconds(used.tv_sec) + std::chrono::nanoseconds(used.tv_nsec);
  }

  template <class Poll, class Vain>
  bool spin(Poll& poll, Vain& vain) {
    spins_.fetch_add(1, std::memory_order_relaxed);
    const Clock::time_point begun = Clock::now();
    const Nanoseconds used = used_time();
    while (true) {
      const bool found = poll();
      if (!found && vain()) return false;
      const Nanoseconds time = Clock::now() - begun;
      if (!found && time < policy_.limit()) {
        std::this_thread::yield();
        continue;
      }
      // This thread was kept from running: by another thread, by another cgroup, or because its
      // quota was used up.
      if (time > SpinPolicy::kLongBreak && time - (used_time() - used) > SpinPolicy::kLongBreak) {
        policy_.disturbed();
      } else if (!found) {
        policy_.in_vain();
      } else {
        policy_.found(time);
      }
      return found;
    }
  }

  SpinPolicy policy_;
  std::atomic<uint64_t> spins_{0};
};

}  // namespace weft
