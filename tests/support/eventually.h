// Waits for a condition that other threads bring about without telling the test.
//
// Thread safety: a free function.
// Blocking: up to 20 s.
#pragma once

#include <chrono>
#include <functional>

#include "weft/async/future.h"

namespace weft::testing {

// Checks `condition` every millisecond until it holds; returns false after 20 s.
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
