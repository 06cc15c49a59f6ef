// Decides whether a thread that waits for messages should first look for them for a moment, or let
// the kernel put it to sleep at once.
//
// Waking a thread on a processor that sleeps costs 10 to 20 us, and as much again on the way back;
// looking costs a processor that others may need. So it is worth while only where messages have
// come quickly of late, and where nobody else wants the processor: whoever spins yields between two
// looks, and says here when that took long.
//
// Thread safety: none; pure, time is told.
#pragma once

#include <algorithm>
#include <chrono>
#include <cstdint>

namespace weft {

class SpinPolicy {
 public:
  using Nanoseconds = std::chrono::nanoseconds;

  // A yield that took longer ran somebody who computes, not somebody who answers.
  static constexpr Nanoseconds kLongYield = std::chrono::milliseconds(1);

  // `limit`: how long one wait may be spun through; 0: never.
  explicit SpinPolicy(Nanoseconds limit) : limit_(limit) {}

  Nanoseconds limit() const { return limit_; }
  bool worth_while() const { return limit_ > Nanoseconds::zero() && score_ > 0; }

  // A wait ended with a message after `time`, spun through or slept through.
  void waited(Nanoseconds time) {
    if (time < kNoWait) return;
    // Two sides that sleep take longer to answer than two that spin.
    if (time <= 2 * limit_) {
      score_ = std::min(score_ + 1, kTrust);
      if (score_ == kTrust) patience_ = kTrust;
    } else {
      score_ = std::max(score_ - 2, std::min(score_, -kTrust));
    }
  }
  // Somebody else needs the processor: sleep, and for twice as many quick messages as last time.
  void disturbed() {
    patience_ = std::min(2 * patience_, kMostPatience);
    score_ = -patience_;
  }

 private:
  static constexpr Nanoseconds kNoWait = std::chrono::microseconds(2);  // it was there already
  static constexpr int kTrust = 16;
  static constexpr int kMostPatience = 4096;

  const Nanoseconds limit_;
  int score_ = 0;  // above 0: worth while
  int patience_ = kTrust;
};

}  // namespace weft
