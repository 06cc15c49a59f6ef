#include "weft/bench/report.h"

#include <algorithm>
#include <utility>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "weft/bench/statistics.h"

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

bool is_mode_of(const std::string& name, const std::string& subject) {
  return name == subject || name.starts_with(subject + " ");
}

std::vector<double> values_of(const Row& row, const Series& series) {
  std::vector<double> values;
  for (const BlockResult& block : series.blocks) values.push_back(value_of(row, block));
  return values;
}

// Returns the median over the blocks of the quotient of two counters.
template <class Numerator, class Denominator>
double median_share(const Series& series, Numerator numerator, Denominator denominator) {
  std::vector<double> shares;
  for (const BlockResult& block : series.blocks)
    shares.push_back(numerator(block) / denominator(block));
  return median(shares);
}

std::string cost_line(const Row& row, const Series& series, int row_width) {
  const auto calls = [](const BlockResult& block) { return static_cast<double>(block.all_calls); };
  const auto one = [](const BlockResult&) { return 1.0; };
  const bool timed_singly = row.work != Work::kAddInFlight;
  const std::string p99 =
      timed_singly
          ? absl::StrFormat("%.1f",
                            median_share(
                                series, [](const BlockResult& block) { return block.p99_us; }, one))
          : "-";
  return absl::StrFormat(
      "%-*s %-*s %12.4g %-8s %12s %12.1f %10.2f %10.2f\n", row_width, row.name, kNameWidth,
      series.contestant, median(values_of(row, series)), row.unit, p99,
      median_share(
          series, [](const BlockResult& b) { return b.usage.cpu_seconds * 1e6; }, calls),
      median_share(
          series, [](const BlockResult& b) { return b.usage.page_faults; }, calls),
      median_share(
          series, [](const BlockResult& b) { return b.usage.switches; }, calls));
}

}  // namespace

std::vector<Comparison> compare(const RowResult& result, const std::string& subject,
                                uint64_t seed) {
  const auto own = std::find_if(result.series.begin(), result.series.end(),
                                [&](const Series& series) { return series.contestant == subject; });
  std::vector<Comparison> comparisons;
  if (own == result.series.end() || !own->status.ok() || own->blocks.empty()) return comparisons;
  const std::vector<double> own_values = values_of(result.row, *own);
  for (const Series& peer : result.series) {
    if (&peer == &*own || !peer.status.ok()) continue;
    const std::vector<double> peer_values = values_of(result.row, peer);
    std::vector<double> ratios;
    for (size_t round = 0; round < own_values.size(); ++round) {
      ratios.push_back(result.row.lower_is_better() ? peer_values.at(round) / own_values[round]
                                                    : own_values[round] / peer_values.at(round));
    }
    const Interval interval = bootstrap_median(ratios, seed);
    comparisons.push_back({.row = result.row.name,
                           .peer = peer.contestant,
                           .subject_value = median(own_values),
                           .peer_value = median(peer_values),
                           .unit = result.row.unit,
                           .ratio = median(ratios),
                           .low = interval.low,
                           .high = interval.high,
                           .rounds = ratios.size()});
  }
  return comparisons;
}

std::vector<Comparison> compare_modes(const RowResult& result, const std::string& subject,
                                      uint64_t seed) {
  std::vector<Comparison> comparisons;
  for (const Series& mode : result.series) {
    if (!is_mode_of(mode.contestant, subject)) continue;
    for (Comparison& line : compare(result, mode.contestant, seed)) {
      if (is_mode_of(line.peer, subject)) continue;
      if (mode.contestant != subject) {
        absl::StrAppend(&line.row, ", ", mode.contestant.substr(subject.size() + 1));
      }
      comparisons.push_back(std::move(line));
    }
  }
  return comparisons;
}

std::vector<Comparison> compare_agents(const RowResult& result, const std::string& subject,
                                       uint64_t seed) {
  std::vector<Comparison> lines = compare(result, subject, seed);
  const auto own = std::find_if(result.series.begin(), result.series.end(),
                                [&](const Series& series) { return series.contestant == subject; });
  if (own == result.series.end() || !own->status.ok() || own->blocks.empty()) return lines;
  if (lines.empty()) {
    lines.push_back({.row = result.row.name,
                     .peer = "none",
                     .subject_value = median(values_of(result.row, *own)),
                     .unit = result.row.unit});
  }
  const auto one = [](const BlockResult&) { return 1.0; };
  const auto median_of = [&](auto figure) { return median_share(*own, figure, one); };
  for (Comparison& line : lines) {
    line.figures = {
        {"median_wait_us", median_of([](const BlockResult& block) { return block.median_us; })},
        {"p99_wait_us", median_of([](const BlockResult& block) { return block.p99_us; })},
        {"mean_batch", median_of([](const BlockResult& block) { return block.mean_batch; })},
        {"agent_us", median_of([](const BlockResult& block) { return block.agent_us; })},
        {"agent_calls_per_s",
         median_of([](const BlockResult& block) { return block.agent_rate; })}};
  }
  return lines;
}

std::vector<Comparison> compare_pipelines(const RowResult& result, const std::string& subject,
                                          uint64_t seed) {
  std::vector<Comparison> lines = compare(result, subject, seed);
  const auto own = std::find_if(result.series.begin(), result.series.end(),
                                [&](const Series& series) { return series.contestant == subject; });
  if (own == result.series.end() || !own->status.ok() || own->blocks.empty()) return lines;
  const auto beside = [&](const char* peer, double BlockResult::*step_us) {
    std::vector<double> ratios, rates;
    for (const BlockResult& block : own->blocks) {
      ratios.push_back(block.*step_us / block.median_us);
      rates.push_back(value_of(result.row, block) / ratios.back());
    }
    const Interval interval = bootstrap_median(ratios, seed);
    lines.push_back({.row = result.row.name,
                     .peer = peer,
                     .subject_value = median(values_of(result.row, *own)),
                     .peer_value = median(rates),
                     .unit = result.row.unit,
                     .ratio = median(ratios),
                     .low = interval.low,
                     .high = interval.high,
                     .rounds = ratios.size()});
  };
  beside("ideal", &BlockResult::ideal_us);
  beside("unsplit", &BlockResult::unsplit_us);
  return lines;
}

std::vector<Comparison> across_runs(const std::vector<std::vector<Comparison>>& runs) {
  std::vector<Comparison> lines;
  for (const Comparison& first : runs.at(0)) {
    std::vector<double> subject_values, peer_values;
    std::vector<std::vector<double>> figures(first.figures.size());
    Comparison line = first;
    for (const std::vector<Comparison>& run : runs) {
      const auto found = std::find_if(run.begin(), run.end(), [&](const Comparison& other) {
        return other.row == first.row && other.peer == first.peer;
      });
      if (found == run.end()) break;
      subject_values.push_back(found->subject_value);
      peer_values.push_back(found->peer_value);
      line.runs.push_back(found->ratio);
      for (size_t i = 0; i < figures.size(); ++i) figures[i].push_back(found->figures.at(i).second);
    }
    if (line.runs.size() < runs.size()) continue;
    line.subject_value = median(subject_values);
    line.peer_value = median(peer_values);
    line.ratio = median(line.runs);
    for (size_t i = 0; i < figures.size(); ++i) line.figures[i].second = median(figures[i]);
    line.low = *std::min_element(line.runs.begin(), line.runs.end());
    line.high = *std::max_element(line.runs.begin(), line.runs.end());
    lines.push_back(std::move(line));
  }
  return lines;
}

nlohmann::json to_json(const std::vector<Comparison>& comparisons) {
  nlohmann::json array = nlohmann::json::array();
  for (const Comparison& line : comparisons) {
    array.push_back({{"row", line.row},
                     {"peer", line.peer},
                     {"weft", line.subject_value},
                     {"peer_value", line.peer_value},
                     {"unit", line.unit},
                     {"ratio", line.ratio},
                     {"low", line.low},
                     {"high", line.high}});
    for (const auto& [name, value] : line.figures) array.back()[name] = value;
    if (!line.runs.empty()) array.back()["runs"] = line.runs;
  }
  return array;
}

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
      if (!series.status.ok() || series.blocks.empty()) continue;
      const auto one = [](const BlockResult&) { return 1.0; };
      const auto step = [](const BlockResult& block) { return block.median_us; };
      const auto value = [&](const BlockResult& block) { return value_of(result.row, block); };
      absl::StrAppendFormat(
          &table, "%-*s %-*s %12.1f %12.1f %16.2f %8.1f\n", row_width, result.row.name, kNameWidth,
          series.contestant,
          median_share(
              series, [](const BlockResult& block) { return block.local_us; }, one) *
              1e-3,
          median_share(series, step, one) * 1e-3, median_share(series, value, one) * 1e-3,
          median_share(series, value, step) * 100);
    }
  }
  return table;
}

std::string agent_table(const std::vector<RowResult>& results) {
  const int row_width = bench::row_width(results);
  const auto one = [](const BlockResult&) { return 1.0; };
  std::string table;
  for (const RowResult& result : results) {
    if (result.row.unit != "steps/s") continue;
    if (table.empty()) {
      absl::StrAppendFormat(&table, "%-*s %-*s %12s %14s %12s %12s\n", row_width, "row", kNameWidth,
                            "contestant", "steps/s", "median wait us", "p99 us", "mean batch");
    }
    for (const Series& series : result.series) {
      if (!series.status.ok() || series.blocks.empty()) continue;
      const auto median_of = [&](auto figure) { return median_share(series, figure, one); };
      absl::StrAppendFormat(
          &table, "%-*s %-*s %12.0f %14.0f %12.0f %12.1f\n", row_width, result.row.name, kNameWidth,
          series.contestant,
          median_of([&](const BlockResult& block) { return value_of(result.row, block); }),
          median_of([](const BlockResult& block) { return block.median_us; }),
          median_of([](const BlockResult& block) { return block.p99_us; }),
          median_of([](const BlockResult& block) { return block.mean_batch; }));
    }
  }
  return table;
}

std::string cost_table(const std::vector<RowResult>& results) {
  const int row_width = bench::row_width(results);
  std::string table = absl::StrFormat("%-*s %-*s %12s %-8s %12s %12s %10s %10s\n", row_width, "row",
                                      kNameWidth, "contestant", "value", "unit", "p99 us",
                                      "CPU us/call", "faults/c.", "switches/c.");
  for (const RowResult& result : results) {
    for (const Series& series : result.series) {
      if (series.status.ok() && !series.blocks.empty()) {
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
