// Waits for what other threads bring about and nobody tells.
#pragma once

#include <chrono>
#include <functional>

#include "weft/async/future.h"

namespace weft::testing {

// Looks again and again until `condition` holds; false after 20 s.
inline bool eventually(const std::function<bool()>& condition) {
  const Promise<void> never;
  const TimePoint end = std::chrono::steady_clock::now() + std::chrono::seconds(20);
  while (!condition()) {
    if (std::chrono::steady_clock::now() > end) return false;
    (void)never.future().wait_for(std::chrono::milliseconds(1));
  }
  return true;
}

}  // namespace weft::testing
