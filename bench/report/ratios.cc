#include "weft/bench/report/ratios.h"

#include <algorithm>
#include <utility>

#include "absl/strings/str_cat.h"
#include "weft/bench/report/series.h"
#include "weft/bench/report/statistics.h"

namespace weft::bench {
namespace {

bool is_mode_of(const std::string& name, const std::string& subject) {
  return name == subject || name.starts_with(subject + " ");
}

// Null: this contestant has no such row, or failed in it.
const Series* series_of(const RowResult& result, const std::string& contestant) {
  for (const Series& series : result.series) {
    if (series.contestant == contestant) return has_blocks(series) ? &series : nullptr;
  }
  return nullptr;
}

// The line of a row that no peer has.
Comparison line_without_peer(const Row& row, const Series& own) {
  return {.row = row.name,
          .peer = "none",
          .subject_value = median(values_of(row, own)),
          .unit = row.unit};
}

// Compares the operation of the row with another one that was timed in the same blocks.
Comparison line_within_blocks(const Row& row, const Series& own, const std::string& peer,
                              double BlockResult::*other_us, uint64_t seed) {
  std::vector<double> ratios, peer_values;
  for (const BlockResult& block : own.blocks) {
    ratios.push_back(block.*other_us / block.median_us);
    peer_values.push_back(row.lower_is_better() ? block.*other_us
                                                : value_of(row, block) / ratios.back());
  }
  const Interval interval = bootstrap_median(ratios, seed);
  return {.row = row.name,
          .peer = peer,
          .subject_value = median(values_of(row, own)),
          .peer_value = median(peer_values),
          .unit = row.unit,
          .ratio = median(ratios),
          .low = interval.low,
          .high = interval.high,
          .rounds = ratios.size()};
}

bool contains(const std::vector<std::string>& names, const std::string& name) {
  return std::find(names.begin(), names.end(), name) != names.end();
}

bool is_peer_of_mode(const std::string& name, const Mode& mode, const std::vector<Mode>& modes) {
  if (contains(mode.peers, name)) return true;
  const bool is_first = mode.contestant == modes[0].contestant;
  return is_first && std::none_of(modes.begin(), modes.end(), [&](const Mode& other) {
           return other.contestant == name || contains(other.peers, name);
         });
}

// Returns the figures that a row of calls has beside its value. `peer` is null if the peer is no
// contestant.
std::vector<std::pair<std::string, double>> call_figures(const Row& row, const Series& own,
                                                         const Series* peer) {
  std::vector<std::pair<std::string, double>> figures;
  if (row.work != Work::kAddInFlight) {
    figures.emplace_back("p50_us", median_of(own, &BlockResult::median_us));
    figures.emplace_back("p99_us", median_of(own, &BlockResult::p99_us));
  }
  const auto add_costs = [&](const std::string& whose, const Series& series) {
    figures.emplace_back(whose + "cpu_us_per_call", cpu_us_per_call(series));
    if (row.unit == "GB/s") {
      figures.emplace_back(whose + "cpu_s_per_gb", cpu_seconds_per_gb(series));
    }
    figures.emplace_back(whose + "faults_per_call", faults_per_call(series));
    figures.emplace_back(whose + "switches_per_call", switches_per_call(series));
  };
  add_costs("", own);
  if (peer != nullptr) add_costs("peer_", *peer);
  if (row.work == Work::kMixed) {
    figures.emplace_back("stream_gb_per_s", median_of(own, &BlockResult::stream_gb_per_s));
    figures.emplace_back("stream_alone_gb_per_s",
                         median_of(own, &BlockResult::stream_alone_gb_per_s));
    figures.emplace_back("stream_share", stream_share(own));
  }
  return figures;
}

struct FootprintFigure {
  const char* name;
  double Footprint::*member;
};
constexpr FootprintFigure kFootprintFigures[] = {
    {"threads_per_worker", &Footprint::threads},
    {"descriptors_per_worker", &Footprint::descriptors},
    {"private_mib_per_worker", &Footprint::private_mib},
    {"shared_mib_of_all", &Footprint::shared_mib}};

}  // namespace

std::vector<Comparison> compare(const RowResult& result, const std::string& subject,
                                uint64_t seed) {
  const Series* own = series_of(result, subject);
  std::vector<Comparison> comparisons;
  if (own == nullptr) return comparisons;
  const std::vector<double> own_values = values_of(result.row, *own);
  for (const Series& peer : result.series) {
    if (&peer == own || !peer.status.ok()) continue;
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
  const Series* own = series_of(result, subject);
  if (own == nullptr) return lines;
  if (lines.empty()) lines.push_back(line_without_peer(result.row, *own));
  for (Comparison& line : lines) {
    line.figures = {{"median_wait_us", median_of(*own, &BlockResult::median_us)},
                    {"p99_wait_us", median_of(*own, &BlockResult::p99_us)},
                    {"mean_batch", median_of(*own, &BlockResult::mean_batch)},
                    {"agent_us", median_of(*own, &BlockResult::agent_us)},
                    {"agent_calls_per_s", median_of(*own, &BlockResult::agent_rate)}};
  }
  return lines;
}

std::vector<Comparison> compare_pipelines(const RowResult& result, const std::string& subject,
                                          uint64_t seed) {
  std::vector<Comparison> lines = compare(result, subject, seed);
  const Series* own = series_of(result, subject);
  if (own == nullptr) return lines;
  const auto beside = [&](const char* peer, double BlockResult::*step_us) {
    lines.push_back(line_within_blocks(result.row, *own, peer, step_us, seed));
  };
  beside("schedule", &BlockResult::schedule_us);
  beside("fill-drain", &BlockResult::fill_drain_us);
  beside("unsplit", &BlockResult::unsplit_us);
  return lines;
}

std::vector<Comparison> compare_calls(const RowResult& result, const std::vector<Mode>& modes,
                                      const std::string& subject, uint64_t seed) {
  std::vector<Comparison> comparisons;
  const bool all_modes = subject == modes.at(0).contestant;
  const std::vector<Mode> chosen = all_modes ? modes : std::vector<Mode>{{subject, {}}};
  for (const Mode& mode : chosen) {
    const Series* own = series_of(result, mode.contestant);
    if (own == nullptr) continue;
    std::vector<Comparison> lines = compare(result, mode.contestant, seed);
    if (all_modes) {
      std::erase_if(
          lines, [&](const Comparison& line) { return !is_peer_of_mode(line.peer, mode, modes); });
    }
    if (result.row.work == Work::kGive) {
      lines.push_back(
          line_within_blocks(result.row, *own, "small call", &BlockResult::small_call_us, seed));
    }
    if (lines.empty()) lines.push_back(line_without_peer(result.row, *own));
    for (Comparison& line : lines) {
      if (mode.contestant != subject) {
        absl::StrAppend(&line.row, ", ", mode.contestant.substr(subject.size() + 1));
      }
      line.figures = call_figures(result.row, *own, series_of(result, line.peer));
      comparisons.push_back(std::move(line));
    }
  }
  return comparisons;
}

std::vector<Comparison> compare_workers(const RowResult& result, const std::string& subject,
                                        uint64_t seed) {
  std::vector<Comparison> lines = compare(result, subject, seed);
  const Series* own = series_of(result, subject);
  if (own == nullptr) return lines;
  if (lines.empty()) lines.push_back(line_without_peer(result.row, *own));
  for (Comparison& line : lines) {
    line.figures = {{"join_s", median_of(*own, &BlockResult::join_seconds)}};
    for (const FootprintFigure& figure : kFootprintFigures) {
      line.figures.emplace_back(figure.name, median_of(*own, [&](const BlockResult& block) {
                                  return block.footprint.*figure.member;
                                }));
    }
  }
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

}  // namespace weft::bench
