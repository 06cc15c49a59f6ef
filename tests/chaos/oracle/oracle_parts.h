// The parts of `judge`, one for each kind of promise.
#pragma once

#include "weft/tests/chaos/oracle/oracle.h"

namespace weft::chaos {

// Calls, executions and steps: each is told once, in time, and truly.
void judge_calls(const std::vector<Incarnation>& incarnations, const OracleOptions& options,
                 Findings& findings);
// References, threads, descriptors and files that an incarnation kept when it exited.
void judge_leftovers(const std::vector<Incarnation>& incarnations,
                     const std::vector<Injection>& injections, Findings& findings);
// Deaths: who noticed them and how soon, which faults met traffic, and who was given up without
// reason.
void judge_deaths(const std::vector<Incarnation>& incarnations,
                  const std::vector<Injection>& injections, Findings& findings);

}  // namespace weft::chaos
