// Functions that do many runs, repeat one, or run with one broken rule of a core.
//
// Thread safety: none.
#pragma once

#include <cstdint>
#include <ostream>
#include <span>
#include <string>
#include <vector>

#include "weft/tests/sim/profile.h"
#include "weft/tests/sim/report.h"
#include "weft/tests/sim/world/trace.h"
#include "weft/tests/sim/world/violation.h"

namespace weft::sim {

struct RunOptions {
  uint64_t runs = 1000;
  uint64_t first_seed = 1;
  double seconds = 0;  // above 0: run for this long instead of `runs` times
  bool trace = false;  // prints every event in words
  std::string mutant;
  std::vector<Profile> profiles = {Profile::kEverything, Profile::kSteps, Profile::kJoining,
                                   Profile::kShutdown};  // `runs` of each
};

struct RunResult {
  uint64_t seed = 0;
  uint64_t events = 0;
  uint64_t hash = 0;  // of all events: equal for equal seeds
  Violation violation;
};

RunResult run_seed(Profile profile, uint64_t seed, Report& report);
// The same with a trace, and not counted in the report.
RunResult run_traced(Profile profile, uint64_t seed, Report& report, Trace& trace);
// Runs until the first violation. Prints it with the last events, and counts of what was done.
// Returns the exit status.
int run_and_report(const RunOptions& options, bool one, std::ostream& out);
// Replays the seeds of a file in every profile. Each line has a number and then a remark.
int replay(const std::string& file, std::ostream& out);

// ---- Rules that can be broken (base/faults/breakage.h).

// One rule, and the run or test that must notice when it is broken.
struct Rule {
  const char* name;
  const char* broken;  // the core's wrong behaviour
  Profile profile = Profile::kEverything;
  // For rules that runs meet too seldom: the core's own test, which runs over the broken core.
  const char* test = nullptr;
};
std::span<const Rule> rules();
// False: no rule has this name, or this build cannot break rules.
bool break_rule(std::string_view name);
void mend_rules();
// Breaks each rule in turn until a run finds it, and prints the table. Returns 0 if all were found.
int find_breakages(uint64_t at_most, std::ostream& out);

}  // namespace weft::sim
