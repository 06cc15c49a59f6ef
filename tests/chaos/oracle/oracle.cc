#include "weft/tests/chaos/oracle/oracle.h"

#include <algorithm>
#include <cmath>
#include <utility>

#include "weft/tests/chaos/oracle/oracle_parts.h"

namespace weft::chaos {

void Findings::violate(std::string what) {
  if (violations.size() < kMostViolations) violations.push_back(std::move(what));
}

double percentile(const std::vector<double>& sorted, double p) {
  if (sorted.empty()) return 0;
  const double place = std::ceil(p * static_cast<double>(sorted.size())) - 1;
  return sorted[static_cast<size_t>(std::max(place, 0.0))];
}

Findings judge(const std::vector<Incarnation>& incarnations,
               const std::vector<Injection>& injections, const OracleOptions& options) {
  Findings findings;
  for (const Incarnation& incarnation : incarnations) {
    findings.joins += incarnation.id != 0 ? 1 : 0;
    findings.fenced += incarnation.fenced ? 1 : 0;
  }
  judge_calls(incarnations, options, findings);
  judge_leftovers(incarnations, injections, findings);
  judge_deaths(incarnations, injections, findings);
  if (options.exact) return findings;
  // Records may contain flipped bits, so other violations prove nothing.
  const uint64_t hanging = findings.hanging;
  findings.violations.clear();
  if (hanging > 0) findings.violate("calls outlived their limits although only bits were flipped");
  return findings;
}

}  // namespace weft::chaos
