// The only source of randomness of a run. One seed determines all its numbers.
//
// Thread safety: none.
#pragma once

#include <cstddef>
#include <cstdint>

#include "weft/base/clock.h"

namespace weft::sim {

class Dice {
 public:
  explicit Dice(uint64_t seed) : state_(seed * 0x9E3779B97F4A7C15ull + 0xD1B54A32D192ED03ull) {}

  // splitmix64: good enough for this use, and it takes a few cycles.
  uint64_t next() {
    uint64_t z = state_ += 0x9E3779B97F4A7C15ull;
    z = (z ^ (z >> 30)) * 0xBF58476D1CE4E5B9ull;
    z = (z ^ (z >> 27)) * 0x94D049BB133111EBull;
    return z ^ (z >> 31);
  }
  // Uniform in [0, n); n > 0.
  uint64_t below(uint64_t n) { return next() % n; }
  uint64_t between(uint64_t low, uint64_t high) { return low + below(high - low + 1); }
  bool chance(unsigned percent) { return below(100) < percent; }
  Nanoseconds micros(uint64_t low, uint64_t high) {
    return Nanoseconds(static_cast<int64_t>(low * 1000 + below((high - low) * 1000 + 1)));
  }
  Nanoseconds millis(uint64_t low, uint64_t high) { return micros(low * 1000, high * 1000); }
  template <class Container>
  auto& pick(Container& from) {
    return from[below(from.size())];
  }

 private:
  uint64_t state_;
};

}  // namespace weft::sim
