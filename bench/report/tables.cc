#include "weft/bench/report/tables.h"

#include <algorithm>
#include <map>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "weft/bench/report/series.h"
#include "weft/bench/report/statistics.h"

namespace weft::bench {
namespace {

constexpr size_t kLeastRowWidth = 20;
constexpr size_t kNameWidth = 13;

// Returns the width of the first column of a table.
template <class Entries, class NameOf>
int row_width(const Entries& entries, NameOf name_of) {
  size_t width = kLeastRowWidth;
  for (const auto& entry : entries) width = std::max(width, name_of(entry).size());
  return static_cast<int>(width);
}

int row_width(const std::vector<RowResult>& results) {
  return row_width(results,
                   [](const RowResult& result) -> const std::string& { return result.row.name; });
}

bool is_of_many_workers(const Row& row) {
  return row.work == Work::kAllToAllAdd || row.work == Work::kAllToAllSend;
}

std::string cost_line(const Row& row, const Series& series, int row_width) {
  const bool timed_singly = row.work != Work::kAddInFlight;
  const double p99 = median_of(series, &BlockResult::p99_us);
  const double per_gb = cpu_seconds_per_gb(series);
  return absl::StrFormat("%-*s %-*s %12.4g %-8s %12s %12.1f %10s %10.2f %10.2f\n", row_width,
                         row.name, kNameWidth, series.contestant, median(values_of(row, series)),
                         row.unit, timed_singly ? absl::StrFormat("%.1f", p99) : "-",
                         cpu_us_per_call(series),
                         per_gb > 0 ? absl::StrFormat("%.3f", per_gb) : "-",
                         faults_per_call(series), switches_per_call(series));
}

}  // namespace

std::string comparison_table(const std::vector<Comparison>& comparisons,
                             const std::string& subject) {
  const int row_width = bench::row_width(
      comparisons, [](const Comparison& line) -> const std::string& { return line.row; });
  const bool of_enough_rounds =
      std::all_of(comparisons.begin(), comparisons.end(),
                  [](const Comparison& line) { return line.rounds >= kRoundsOfAnInterval; });
  std::string spread = of_enough_rounds ? "95 % interval" : "least, most";
  if (!comparisons.empty() && !comparisons[0].runs.empty()) {
    spread = absl::StrCat("least, most of ", comparisons[0].runs.size(), " runs");
  }
  std::string table = absl::StrFormat("%-*s %-*s %12s %12s %-8s %8s   %s\n", row_width, "row",
                                      kNameWidth, "peer", subject, "peer", "unit", "ratio", spread);
  for (const Comparison& line : comparisons) {
    absl::StrAppendFormat(&table, "%-*s %-*s %12.4g %12.4g %-8s %8.2f   [%.2f, %.2f]\n", row_width,
                          line.row, kNameWidth, line.peer, line.subject_value, line.peer_value,
                          line.unit, line.ratio, line.low, line.high);
  }
  return table;
}

std::string step_table(const std::vector<RowResult>& results) {
  const int row_width = bench::row_width(results);
  std::string table;
  for (const RowResult& result : results) {
    if (result.row.work != Work::kDdpStep) continue;
    absl::StrAppendFormat(&table, "%-*s %-*s %12s %12s %16s %8s\n", row_width, "row", kNameWidth,
                          "contestant", "local ms", "with DDP ms", "communication ms", "share %");
    for (const Series& series : result.series) {
      if (!has_blocks(series)) continue;
      const auto value = [&](const BlockResult& block) { return value_of(result.row, block); };
      absl::StrAppendFormat(
          &table, "%-*s %-*s %12.1f %12.1f %16.2f %8.1f\n", row_width, result.row.name, kNameWidth,
          series.contestant, median_of(series, &BlockResult::local_us) * 1e-3,
          median_of(series, &BlockResult::median_us) * 1e-3, median_of(series, value) * 1e-3,
          median_of(series, [&](const BlockResult& b) { return value(b) / b.median_us; }) * 100);
    }
  }
  return table;
}

std::string agent_table(const std::vector<RowResult>& results) {
  const int row_width = bench::row_width(results);
  std::string table;
  for (const RowResult& result : results) {
    if (result.row.unit != "steps/s") continue;
    if (table.empty()) {
      absl::StrAppendFormat(&table, "%-*s %-*s %12s %14s %12s %12s\n", row_width, "row", kNameWidth,
                            "contestant", "steps/s", "median wait us", "p99 us", "mean batch");
    }
    for (const Series& series : result.series) {
      if (!has_blocks(series)) continue;
      absl::StrAppendFormat(
          &table, "%-*s %-*s %12.0f %14.0f %12.0f %12.1f\n", row_width, result.row.name, kNameWidth,
          series.contestant, median(values_of(result.row, series)),
          median_of(series, &BlockResult::median_us), median_of(series, &BlockResult::p99_us),
          median_of(series, &BlockResult::mean_batch));
    }
  }
  return table;
}

std::string mixed_table(const std::vector<RowResult>& results) {
  const int row_width = bench::row_width(results);
  std::string table;
  for (const RowResult& result : results) {
    if (result.row.work != Work::kMixed) continue;
    absl::StrAppendFormat(&table, "%-*s %-*s %12s %12s %14s %12s %8s\n", row_width, "row",
                          kNameWidth, "contestant", "p50 us", "p99 us", "stream GB/s", "alone GB/s",
                          "share %");
    for (const Series& series : result.series) {
      if (!has_blocks(series)) continue;
      absl::StrAppendFormat(
          &table, "%-*s %-*s %12.1f %12.1f %14.2f %12.2f %8.1f\n", row_width, result.row.name,
          kNameWidth, series.contestant, median_of(series, &BlockResult::median_us),
          median_of(series, &BlockResult::p99_us), median_of(series, &BlockResult::stream_gb_per_s),
          median_of(series, &BlockResult::stream_alone_gb_per_s), stream_share(series) * 100);
    }
  }
  return table;
}

std::string workers_table(const std::vector<RowResult>& results) {
  const int row_width = bench::row_width(results);
  std::map<std::string, double> private_with_one_peer;  // by contestant
  std::string table;
  for (const RowResult& result : results) {
    if (!is_of_many_workers(result.row)) continue;
    if (table.empty()) {
      absl::StrAppendFormat(&table, "%-*s %-*s %12s %-8s %8s %8s %8s %12s %12s %12s\n", row_width,
                            "row", kNameWidth, "contestant", "value", "unit", "join s", "threads",
                            "fds", "private MiB", "more MiB", "shared MiB");
    }
    for (const Series& series : result.series) {
      if (!has_blocks(series)) continue;
      const auto held = [&](double Footprint::*what) {
        return median_of(series, [&](const BlockResult& b) { return b.footprint.*what; });
      };
      const double private_mib = held(&Footprint::private_mib);
      std::string more = "-";
      if (result.row.processes == 2) {
        private_with_one_peer[series.contestant] = private_mib;  // the last such row counts
      } else if (private_with_one_peer.contains(series.contestant)) {
        more = absl::StrFormat("%.1f", private_mib - private_with_one_peer[series.contestant]);
      }
      absl::StrAppendFormat(
          &table, "%-*s %-*s %12.4g %-8s %8.2f %8.0f %8.0f %12.1f %12s %12.1f\n", row_width,
          result.row.name, kNameWidth, series.contestant, median(values_of(result.row, series)),
          result.row.unit, median_of(series, &BlockResult::join_seconds), held(&Footprint::threads),
          held(&Footprint::descriptors), private_mib, more, held(&Footprint::shared_mib));
    }
  }
  return table;
}

std::string cost_table(const std::vector<RowResult>& results) {
  const int row_width = bench::row_width(results);
  std::string table = absl::StrFormat("%-*s %-*s %12s %-8s %12s %12s %10s %10s %10s\n", row_width,
                                      "row", kNameWidth, "contestant", "value", "unit", "p99 us",
                                      "CPU us/call", "CPU s/GB", "faults/c.", "switches/c.");
  for (const RowResult& result : results) {
    for (const Series& series : result.series) {
      if (has_blocks(series)) {
        absl::StrAppend(&table, cost_line(result.row, series, row_width));
      } else if (!absl::IsUnimplemented(series.status)) {
        absl::StrAppendFormat(&table, "%-*s %-*s failed: %s\n", row_width, result.row.name,
                              kNameWidth, series.contestant, series.status.ToString());
      }
    }
    absl::StrAppendFormat(&table, "%-*s stolen time %.1f %%, disturbed rounds %d\n", row_width, "",
                          result.stolen * 100, result.disturbed_rounds);
  }
  return table;
}

}  // namespace weft::bench
