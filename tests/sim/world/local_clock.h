// The clock of one simulated worker. It runs faster or slower than other clocks.
//
// Thread safety: a plain value.
#pragma once

#include <cstdint>

#include "weft/base/clock.h"

namespace weft::sim {

struct LocalClock {
  // docs/membership.md: leases hold if rates are up to 10 % apart.
  static constexpr int kMostDrift = 45;
  int drift = 0;  // per thousand

  TimePoint at(TimePoint when) const { return when + when.time_since_epoch() * drift / 1000; }
  // Returns how long a span of this clock takes in virtual time.
  Nanoseconds span(Nanoseconds local) const { return local * 1000 / (1000 + drift); }
};

}  // namespace weft::sim
