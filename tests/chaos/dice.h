// Draws random numbers for the workload, all from one seed.
//
// Thread safety: belongs to one thread.
#pragma once

#include <cmath>
#include <cstdint>
#include <random>
#include <vector>

namespace weft::chaos {

class Dice {
 public:
  explicit Dice(uint64_t seed) : random_(seed) {}

  uint64_t between(uint64_t from, uint64_t to) { return from + random_() % (to - from + 1); }
  bool one_in(uint64_t n) { return random_() % n == 0; }
  // Draws each order of magnitude equally often.
  uint64_t spread(uint64_t from, uint64_t to) {
    const double share = static_cast<double>(random_() >> 11) * 0x1p-53;
    const double ratio = static_cast<double>(to) / static_cast<double>(from);
    return static_cast<uint64_t>(static_cast<double>(from) * std::pow(ratio, share));
  }
  template <class T>
  const T& among(const std::vector<T>& all) {
    return all[random_() % all.size()];
  }

 private:
  std::mt19937_64 random_;
};

}  // namespace weft::chaos
