// Knows what the thread that leads a CollectiveGroup waits for, and spins for it where that is
// worth while.
//
// Thread safety: none. Only the thread that leads uses it.
// Blocking: spin(), for the time of the policy at most.
#pragma once

#include <algorithm>
#include <chrono>
#include <thread>
#include <vector>

#include "weft/async/spin_policy.h"
#include "weft/comm/same_host/channels.h"
#include "weft/comm/same_host/collective_core.h"
#include "weft/shm/wait_word.h"

namespace weft::comm_internal {

class Lookout {
 public:
  // `limit`: how long one wait may spin; 0: never.
  explicit Lookout(SpinPolicy::Nanoseconds limit) : policy_(limit) {}

  // Waits from now on for this goal, and for the counters that messages wait for. A change of any
  // of them is a reason to try again. Call it with the group's lock held.
  void expect(const CollectiveCore::Goal& goal, const Channels& channels) {
    goal_ = goal;
    watches_.clear();
    if (!channels.idle()) channels.watch(watches_);
  }
  // Whether something has come that is a reason to try again.
  bool come() const {
    return goal_.reached() || std::any_of(watches_.begin(), watches_.end(),
                                          [](const auto& one) { return one.moved(); });
  }

  bool worth_while() const {
    return (goal_.counter != nullptr || !watches_.empty()) && policy_.worth_while();
  }
  // True: something has come. False: it is time to sleep.
  bool spin() {
    const Clock::time_point start = Clock::now();
    Clock::time_point last = start;
    for (int looks = 1;; ++looks) {
      if (come()) {
        policy_.found(Clock::now() - start);
        return true;
      }
      pause_spinning();
      if (looks % kLooks != 0) continue;
      std::this_thread::yield();
      const Clock::time_point now = Clock::now();
      if (now - last > SpinPolicy::kLongBreak) {
        policy_.disturbed();
        return false;
      }
      if (now - start > policy_.limit()) break;
      last = now;
    }
    policy_.in_vain();
    return false;
  }
  // Call it when the thread has slept for `time`.
  void slept(SpinPolicy::Nanoseconds time) {
    if (come()) policy_.slept(time);
  }

 private:
  using Clock = std::chrono::steady_clock;

  static constexpr int kLooks = 64;  // looks between two yields

  SpinPolicy policy_;
  CollectiveCore::Goal goal_;
  std::vector<Channels::Watch> watches_;
};

}  // namespace weft::comm_internal
