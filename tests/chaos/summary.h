// The figures of a chaos run and the text that shows them.
//
// Thread safety: free functions.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "weft/tests/chaos/oracle/oracle.h"

namespace weft::chaos {

// 99 % of the times until others notice must be shorter, even if every processor has three times
// the load (docs/membership.md). Checked in runs whose faults do not overlap.
inline constexpr double kCrashNoticedMs = 500;
inline constexpr double kHangNoticedMs = 2400;

struct RunReport {
  Findings findings;
  std::vector<std::string> failures;  // of the arena
  uint64_t limit_deaths = 0;
  uint64_t processes_left = 0, files_left = 0;  // not counted by the oracle
  bool exact = true;                            // false: only crashes and hangs count
  bool apart = false;                           // one fault at a time

  bool passed() const;
  bool in_time() const;
};

// A table of faults, and the counts that must be 0.
std::string describe(const RunReport& report);

}  // namespace weft::chaos
