// Decides whether a caller that waits for a reply should read it itself (reading.h).
//
// It pays if nothing else comes. If frames come for the serving thread too, that thread must be
// woken, and spinning would have served both sooner. So each time a caller is disturbed, more of
// the next callers do not read: 1, then 3, 7, and so on up to kMostSkipped. Each caller that is
// alone halves the number for the next time.
//
// Thread safety: none. Pure.
#pragma once

#include <algorithm>
#include <utility>

namespace weft::rpc_internal {

class ReadPolicy {
 public:
  static constexpr int kMostSkipped = 64;

  // A caller begins to wait. False: it leaves the reading to the serving thread.
  bool begin() {
    if (skip_ > 0) {
      --skip_;
      skipped_ = true;
      return false;
    }
    // After a caller that did not read, the serving thread had to read the reply.
    disturbed_ = std::exchange(served_, false) && !std::exchange(skipped_, false);
    skipped_ = false;
    return true;
  }
  // The caller that reads has stopped. `alone`: it has read its own reply, or nothing.
  void end(bool alone) {
    if (alone && !disturbed_) {
      step_ /= 2;
    } else {
      skip_ = step_ = std::min(2 * step_ + 1, kMostSkipped);
    }
  }
  // The serving thread has read what a peer sent.
  void served() { served_ = true; }

 private:
  int skip_ = 0;  // so many of the next callers do not read
  int step_ = 0;  // the last value to which skip_ was set, halved by each caller that was alone
  bool served_ = false;
  bool skipped_ = false;
  bool disturbed_ = false;  // the serving thread had read before the present caller began
};

}  // namespace weft::rpc_internal
