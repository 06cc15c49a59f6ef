// The parts of `judge`.
#pragma once

#include "weft/tests/chaos/oracle/oracle.h"

namespace weft::chaos {

// Calls, executions and steps: each told once, in time, and truly.
void judge_calls(const std::vector<Incarnation>& incarnations, const OracleOptions& options,
                 Findings& findings);
// What a life kept at its end: references, threads, descriptors, files.
void judge_leftovers(const std::vector<Incarnation>& incarnations,
                     const std::vector<Injection>& injections, Findings& findings);
// Who noticed which death, and how soon; which faults met traffic; who was given up without reason.
void judge_deaths(const std::vector<Incarnation>& incarnations,
                  const std::vector<Injection>& injections, Findings& findings);

}  // namespace weft::chaos
