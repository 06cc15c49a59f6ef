// Measures how long the latest runs of a function took, to decide whether its next run should stay
// on this thread instead of waking another one.
//
// A run shorter than 300 us gives a point. A longer run takes 16 points, and an announced wait
// takes all of them. The function is short with 32 points of at most 96.
//
// Thread safety: all methods may be called from any thread. Concurrent updates may lose one of
// them, which only delays the decision.
#pragma once

#include <algorithm>
#include <atomic>
#include <chrono>
#include <cstdint>

#include "weft/async/executor.h"

namespace weft::async_internal {

class RunLengths {
 public:
  // Measures one run, from its construction to its destruction, on the calling thread.
  class Measure {
   public:
    explicit Measure(RunLengths& lengths) : lengths_(lengths) {}
    ~Measure() {
      if (Executor::announced_waits() != waits_) {
        lengths_.add(-kMost);
      } else {
        const Nanoseconds took = std::chrono::steady_clock::now() - start_;
        lengths_.add(took < kShort ? 1 : -kForLong);
        lengths_.average(took);
      }
    }
    Measure(const Measure&) = delete;
    Measure& operator=(const Measure&) = delete;

   private:
    RunLengths& lengths_;
    const std::chrono::steady_clock::time_point start_ = std::chrono::steady_clock::now();
    const uint64_t waits_ = Executor::announced_waits();
  };

  bool short_lately() const { return score_.load(std::memory_order_relaxed) >= kEnough; }
  // The time that a run takes: a moving average over about eight runs without an announced wait.
  Nanoseconds usual() const { return Nanoseconds(usual_ns_.load(std::memory_order_relaxed)); }

 private:
  static constexpr std::chrono::microseconds kShort{300};
  static constexpr int kEnough = 32;
  static constexpr int kMost = 96;
  static constexpr int kForLong = 16;

  void add(int points) {
    const int before = score_.load(std::memory_order_relaxed);
    const int after = std::clamp(before + points, 0, kMost);
    if (after != before) score_.store(after, std::memory_order_relaxed);
  }

  void average(Nanoseconds took) {
    const int64_t before = usual_ns_.load(std::memory_order_relaxed);
    usual_ns_.store(before + (took.count() - before) / 8, std::memory_order_relaxed);
  }

  std::atomic<int> score_{0};
  std::atomic<int64_t> usual_ns_{0};
};

}  // namespace weft::async_internal
