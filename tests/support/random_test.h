// The seed and the length of random tests, which a person can choose.
#pragma once

#include <cstdint>
#include <cstdlib>
#include <random>

#include "absl/strings/numbers.h"

// Whether ThreadSanitizer watches. It reports each race with a hostile peer, who keeps to no order.
#if defined(__SANITIZE_THREAD__)
#define WEFT_TEST_TSAN 1
#elif defined(__has_feature)
#if __has_feature(thread_sanitizer)
#define WEFT_TEST_TSAN 1
#endif
#endif
#ifndef WEFT_TEST_TSAN
#define WEFT_TEST_TSAN 0
#endif

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

// How often a hostile peer overwrites shared memory: WEFT_CORRUPTIONS, or few enough for every run.
inline uint64_t corruptions_to_try() {
  return number_from_environment("WEFT_CORRUPTIONS", 100'000);
}

}  // namespace weft
