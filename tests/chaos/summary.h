// A chaos run in figures, for a person.
//
// Thread safety: free functions.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "weft/tests/chaos/oracle.h"

namespace weft::chaos {

struct RunReport {
  Findings findings;
  std::vector<std::string> failures;  // of the arena
  uint64_t limit_deaths = 0;
  uint64_t processes_left = 0, files_left = 0;  // beside what the oracle counts
  bool exact = true;                            // false: only crashes and hangs count

  bool passed() const;
};

// A table of faults, and the counts that must be 0.
std::string describe(const RunReport& report);

}  // namespace weft::chaos
