// Decides whether a thread that waits for messages should first look for them for a moment, or let
// the kernel put it to sleep at once.
//
// Waking a thread on a processor that sleeps costs 10 to 20 us, and as much again on the way back;
// looking costs a processor that others may need. So it is worth while only where messages have
// come quickly of late, and where nobody else wants the processor: whoever spins yields between two
// looks, and says here when it was kept from running for long.
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

  // Who took the processor for longer computes, and does not answer.
  static constexpr Nanoseconds kLongBreak = std::chrono::milliseconds(1);

  // `limit`: how long one wait may be spun through; 0: never.
  explicit SpinPolicy(Nanoseconds limit) : limit_(limit) {}

  Nanoseconds limit() const { return limit_; }
  bool worth_while() const { return limit_ > Nanoseconds::zero() && score_ > 0; }

  // A message came after `time`, all of it asleep.
  void slept(Nanoseconds time) {
    if (time < kNoWait) return;
    // Two sides that sleep take longer to answer than two that spin.
    if (time / 2 <= limit_) {
      score_ = std::min(score_ + 1, kTrust);
    } else {
      score_ = std::max(score_ - 2, std::min(score_, -kTrust));
    }
  }
  // A message came after `time`, while this thread looked for it.
  void found(Nanoseconds time) {
    if (time < kNoWait) return;
    in_vain_ = 0;
    score_ = std::min(score_ + 1, kTrust);
    if (score_ == kTrust) patience_ = kTrust;
  }
  // None came within the limit: that cost as much as several that came gained.
  void in_vain() {
    score_ -= kVainCost;
    if (++in_vain_ >= kMostInVain) back_off();
  }
  // Somebody else needs the processor.
  void disturbed() { back_off(); }

 private:
  static constexpr Nanoseconds kNoWait = std::chrono::microseconds(2);  // it was there already
  static constexpr int kTrust = 16;
  static constexpr int kMostPatience = 4096;
  static constexpr int kVainCost = 4;
  static constexpr int kMostInVain = 4;  // in a row

  // Sleeps, for twice as many quick messages as last time.
  void back_off() {
    patience_ = std::min(2 * patience_, kMostPatience);
    score_ = -patience_;
  }

  const Nanoseconds limit_;
  int score_ = 0;  // above 0: worth while
  int in_vain_ = 0;
  int patience_ = kTrust;
};

}  // namespace weft
