// The seed and the length of random tests, which a person can choose.
#pragma once

#include <cstdint>
#include <cstdlib>
#include <random>

#include "absl/strings/numbers.h"

namespace weft {

// The number in this environment variable, or `otherwise`.
inline uint64_t number_from_environment(const char* name, uint64_t otherwise) {
  const char* const text = std::getenv(name);
  uint64_t number = 0;
  return text != nullptr && absl::SimpleAtoi(text, &number) ? number : otherwise;
}

// WEFT_SEED, or a random number. A test prints it, so that a failure can be repeated.
inline uint64_t random_test_seed() {
  return number_from_environment("WEFT_SEED", std::random_device()());
}

}  // namespace weft
