#include "weft/tests/chaos/oracle.h"

#include <algorithm>
#include <cmath>
#include <utility>

#include "weft/tests/chaos/oracle_parts.h"

namespace weft::chaos {

void Findings::violate(std::string what) {
  if (violations.size() < kMostViolations) violations.push_back(std::move(what));
}

double percentile(const std::vector<double>& sorted, double p) {
  if (sorted.empty()) return 0;
  const double place = std::ceil(p * static_cast<double>(sorted.size())) - 1;
  return sorted[static_cast<size_t>(std::max(place, 0.0))];
}

Findings judge(const std::vector<Life>& lives, const std::vector<Injection>& injections,
               const OracleOptions& options) {
  Findings findings;
  for (const Life& life : lives) {
    findings.joins += life.id != 0 ? 1 : 0;
    findings.fenced += life.fenced ? 1 : 0;
  }
  judge_calls(lives, options, findings);
  judge_leftovers(lives, injections, findings);
  judge_deaths(lives, injections, findings);
  if (options.exact) return findings;
  // What was told of may be what the flipped bits said.
  const uint64_t hanging = findings.hanging;
  findings.violations.clear();
  if (hanging > 0) findings.violate("calls outlived their limits although only bits were flipped");
  return findings;
}

}  // namespace weft::chaos
