// Many runs: counted, repeated, and with one rule of a core broken.
//
// Thread safety: none.
#pragma once

#include <cstdint>
#include <ostream>
#include <string>

#include "weft/tests/sim/report.h"
#include "weft/tests/sim/world.h"

namespace weft::sim {

struct RunOptions {
  uint64_t runs = 1000;
  uint64_t first_seed = 1;
  double seconds = 0;  // above 0: so long instead of so many
  bool trace = false;  // every event in words
  std::string mutant;
};

struct RunResult {
  uint64_t seed = 0;
  uint64_t events = 0;
  uint64_t hash = 0;  // of all events: equal for equal seeds
  Violation violation;
};

RunResult run_seed(uint64_t seed, Report& report);
// Runs until the first violation; prints it with the last events, and what was done.
// Returns the exit status.
int run_and_report(const RunOptions& options, bool one, std::ostream& out);
// The seeds of a file: one number per line, the rest of a line is a remark.
int replay(const std::string& file, std::ostream& out);

// ---- executables that were built with WEFT_BREAKAGES only; the others have no such rule

// False: no rule has this name here.
bool break_rule(const std::string& name);
void mend_rules();
// Breaks each rule in turn until a run finds it; prints the table. 0 if all were found.
int find_breakages(uint64_t at_most, std::ostream& out);

}  // namespace weft::sim
