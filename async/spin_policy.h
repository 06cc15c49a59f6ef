// Decides whether a thread that waits for messages should spin for a moment before it sleeps.
//
// To wake a thread on a sleeping processor costs 10 to 20 us, and as much again for the answer.
// Spinning uses a processor that other threads may need. So a thread should spin only if recent
// messages came quickly and no other thread needs the processor. A thread that spins yields between
// two looks, and reports here if it was kept from running for long.
//
// Thread safety: none. Pure: the caller measures the times.
#pragma once

#include <algorithm>
#include <chrono>
#include <cstdint>

namespace weft {

class SpinPolicy {
 public:
  using Nanoseconds = std::chrono::nanoseconds;

  // If another thread had the processor for longer than this, it computes (`disturbed`). A thread
  // that only answers a message needs it for less.
  static constexpr Nanoseconds kLongBreak = std::chrono::milliseconds(1);

  // `limit`: how long one wait may spin; 0: never.
  explicit SpinPolicy(Nanoseconds limit) : limit_(limit) {}

  Nanoseconds limit() const { return limit_; }
  bool worth_while() const { return limit_ > Nanoseconds::zero() && score_ > 0; }

  // A message came after this thread had slept for `time`.
  void slept(Nanoseconds time) {
    if (time < kNoWait) return;
    // Two sides that spin answer sooner than two that sleep, so half of the time counts.
    if (time / 2 <= limit_) {
      score_ = std::min(score_ + 1, kTrust);
    } else {
      score_ = std::max(score_ - 2, std::min(score_, -kTrust));
    }
  }
  // A message came after this thread had spun for `time`.
  void found(Nanoseconds time) {
    if (time < kNoWait) return;
    in_vain_ = 0;
    score_ = std::min(score_ + 1, kTrust);
    if (score_ == kTrust) patience_ = kTrust;
  }
  // No message came within the limit. This costs as much as several quick messages saved.
  void in_vain() {
    score_ -= kVainCost;
    if (++in_vain_ >= kMostInVain) back_off();
  }
  // Another thread needs the processor.
  void disturbed() { back_off(); }

 private:
  static constexpr Nanoseconds kNoWait = std::chrono::microseconds(2);  // less: it was there before
  static constexpr int kTrust = 16;
  static constexpr int kMostPatience = 4096;
  static constexpr int kVainCost = 4;
  static constexpr int kMostInVain = 4;  // in a row

  // Stops spinning until `patience_` more quick messages have come, twice as many as last time.
  void back_off() {
    patience_ = std::min(2 * patience_, kMostPatience);
    score_ = -patience_;
  }

  const Nanoseconds limit_;
  int score_ = 0;  // above 0: spinning is worth while
  int in_vain_ = 0;
  int patience_ = kTrust;
};

}  // namespace weft
