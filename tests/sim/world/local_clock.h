// The clock of one simulated worker: it runs faster or slower than the others'.
//
// Thread safety: a plain value.
#pragma once

#include <cstdint>

#include "weft/base/clock.h"

namespace weft::sim {

struct LocalClock {
  // docs/membership.md: leases hold while rates are up to 10 % apart.
  static constexpr int kMostDrift = 45;
  int drift = 0;  // per thousand

  TimePoint at(TimePoint when) const { return when + when.time_since_epoch() * drift / 1000; }
  // How long a span of this clock takes.
  Nanoseconds span(Nanoseconds local) const { return local * 1000 / (1000 + drift); }
};

}  // namespace weft::sim
