#include "weft/tests/chaos/summary.h"

#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"

namespace weft::chaos {
namespace {

std::string percentiles(const char* what, const std::vector<double>& sorted) {
  if (sorted.empty()) return absl::StrCat("  ", what, ": none measured\n");
  return absl::StrFormat("  %s: p50 %.1f ms, p99 %.1f ms, worst %.1f ms, of %d\n", what,
                         percentile(sorted, 0.5), percentile(sorted, 0.99), sorted.back(),
                         sorted.size());
}

}  // namespace

bool RunReport::in_time() const {
  const auto within = [](const std::vector<double>& sorted, double limit) {
    return sorted.empty() || percentile(sorted, 0.99) <= limit;
  };
  return within(findings.crash_ms, kCrashNoticedMs) && within(findings.hang_ms, kHangNoticedMs);
}

bool RunReport::passed() const {
  const Findings& f = findings;
  if (!failures.empty() || f.hanging != 0 || processes_left != 0) return false;
  if (!exact) return true;
  if (apart && !in_time()) return false;
  return f.twice + f.wrong_told + f.broken + f.leaked + f.counters + f.unnoticed + f.false_deaths +
             f.threads + f.descriptors + f.files + files_left ==
         0;
}

std::string describe(const RunReport& report) {
  const Findings& f = report.findings;
  std::string text = absl::StrFormat("  %-40s %9s %9s\n", "fault", "injected", "effective");
  for (int kind = 0; kind < kFaultKinds; ++kind) {
    if (f.injected[kind] == 0) continue;
    absl::StrAppendFormat(&text, "  %-40s %9d %9d\n", to_string(static_cast<FaultKind>(kind)),
                          f.injected[kind], f.effective[kind]);
  }
  absl::StrAppendFormat(&text, "  joins %d; left because they were alone %d; ended by a limit %d\n",
                        f.joins, f.fenced, report.limit_deaths);
  absl::StrAppendFormat(&text,
                        "  calls made %d: answered %d, failed as they said %d; longest %.1f s\n",
                        f.calls, f.ok, f.failed, std::chrono::duration<double>(f.longest).count());
  const auto count = [&text](const char* what, uint64_t value) {
    absl::StrAppendFormat(&text, "  %-58s %d\n", what, value);
  };
  count("calls hanging", f.hanging);
  count("functions executed twice", f.twice);
  count("callers told wrongly whether a function ran", f.wrong_told);
  count("other promises broken", f.broken);
  count("references leaked", f.leaked);
  count("counters that differ from what trainers were told", f.counters);
  count("processes left", report.processes_left);
  count("threads left", f.threads);
  count("files left, open or on disk", f.files + f.descriptors + report.files_left);
  count("deaths that nobody noticed", f.unnoticed);
  count("workers given up without a reason", f.false_deaths);
  text += percentiles("a killed worker was noticed after", f.crash_ms);
  text += percentiles("one that hung or was cut off, after", f.hang_ms);
  if (report.apart && !report.in_time()) {
    absl::StrAppendFormat(&text, "  - too late: %.0f ms and %.0f ms are the limits, at 99 %%\n",
                          kCrashNoticedMs, kHangNoticedMs);
  }
  for (const std::string& violation : f.violations) absl::StrAppend(&text, "  - ", violation, "\n");
  for (const std::string& failure : report.failures) absl::StrAppend(&text, "  - ", failure, "\n");
  return text;
}

}  // namespace weft::chaos
