// A chaos run in figures, for a person.
//
// Thread safety: free functions.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "weft/tests/chaos/oracle/oracle.h"

namespace weft::chaos {

// Of the times until others have noticed, 99 % are shorter, also when every processor is busy three
// times over (docs/membership.md). Held against runs whose faults lie apart.
inline constexpr double kCrashNoticedMs = 500;
inline constexpr double kHangNoticedMs = 2400;

struct RunReport {
  Findings findings;
  std::vector<std::string> failures;  // of the arena
  uint64_t limit_deaths = 0;
  uint64_t processes_left = 0, files_left = 0;  // beside what the oracle counts
  bool exact = true;                            // false: only crashes and hangs count
  bool apart = false;                           // one fault at a time

  bool passed() const;
  bool in_time() const;
};

// A table of faults, and the counts that must be 0.
std::string describe(const RunReport& report);

}  // namespace weft::chaos
