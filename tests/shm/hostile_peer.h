// What tests with a hostile peer share: one that overwrites shared memory at random.
#pragma once

#include <cstdint>

#include "weft/tests/support/random_test.h"

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

namespace weft::ring_test {

// How often the peer overwrites something: WEFT_CORRUPTIONS, or few enough for every run.
inline uint64_t corruptions_to_try() {
  return number_from_environment("WEFT_CORRUPTIONS", 100'000);
}

}  // namespace weft::ring_test
