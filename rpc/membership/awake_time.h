// Measures how long this worker itself ran between its looks at its peers.
//
// The time for which it was stopped, or waited for a processor, is no peer's silence.
//
// Thread safety: none; MembershipCore owns it. It is pure: the caller passes the time.
// Protocol: docs/membership.md, "A slow worker is not a dead one".
#pragma once

#include <algorithm>

#include "weft/base/clock.h"
#include "weft/rpc/membership/lease_options.h"

namespace weft::rpc_internal {

// Times suspect_after: the longest silence that lags and waits may excuse.
inline constexpr int kMostLimit = 16;

inline Nanoseconds bounded(Nanoseconds lag, const LeaseOptions& limits) {
  return std::min<Nanoseconds>(lag, kMostLimit * limits.suspect_after);
}

// A worker that was late may soon be late again. So a lag fades by a fifth at each look.
inline Nanoseconds faded(Nanoseconds lag) { return lag / 5 * 4; }

// Returns `span` without `wait`, and reduces `wait` by what was subtracted.
Nanoseconds without(Nanoseconds span, Nanoseconds& wait);

// The time between two looks.
struct PassedTime {
  Nanoseconds awake;    // without the time for which this worker was stopped
  Nanoseconds counted;  // also without the time for which it waited for a processor
};

class AwakeTime {
 public:
  AwakeTime(const LeaseOptions& limits, TimePoint now) : limits_(limits), last_look_(now) {}

  // The worker looks at its peers. Returns the time since the last look.
  PassedTime look(TimePoint now);
  TimePoint last_look() const { return last_look_; }
  // Returns the time since the constructor, without that for which this worker was stopped. `now`
  // is not before the last look.
  Nanoseconds at(TimePoint now) const { return awake_ + awake(now - last_look_); }
  // Returns how late this worker's timer ran lately, beyond two intervals.
  Nanoseconds lag() const { return lag_; }

  // This worker has waited for a processor. The next looks subtract it.
  void add_wait(Nanoseconds time);
  // No peer is silent, so the wait explains nothing.
  void drop_wait() { wait_ = Nanoseconds(0); }

 private:
  Nanoseconds awake(Nanoseconds span) const;

  const LeaseOptions limits_;
  TimePoint last_look_;
  Nanoseconds awake_{0};  // from the constructor to the last look
  Nanoseconds wait_{0};   // not subtracted yet
  Nanoseconds lag_{0};
};

}  // namespace weft::rpc_internal
