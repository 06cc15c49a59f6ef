// Compares the subject with its peers in one row: ratios with intervals, and their JSON.
//
// Thread safety: pure functions.
#pragma once

#include <cstdint>
#include <string>
#include <utility>
#include <vector>

#include <nlohmann/json.hpp>

#include "weft/bench/harness.h"

namespace weft::bench {

// The median lies between the least and the greatest of six values 97 times of 100.
inline constexpr size_t kRoundsOfAnInterval = 6;

// One line of the result: the subject compared with one peer in one row.
struct Comparison {
  std::string row;
  std::string peer;
  double subject_value = 0;  // medians over the rounds, in `unit`
  double peer_value = 0;
  std::string unit;
  double ratio = 0;  // median of the within-round ratios; above 1: the subject is better
  // The 95 % interval of the ratio. With fewer rounds than kRoundsOfAnInterval, the least and
  // greatest.
  double low = 0;
  double high = 0;
  size_t rounds = 0;
  // For a line across runs: the ratio of each run. `low` and `high` are then the least and
  // greatest.
  std::vector<double> runs = {};
  // Further figures of the subject for the JSON: name and median.
  std::vector<std::pair<std::string, double>> figures = {};
};

// Compares the subject with every other contestant that has all rounds of the row. The result is
// empty if the subject does not have them.
std::vector<Comparison> compare(const RowResult& result, const std::string& subject, uint64_t seed);

// For a system that is measured in several modes: the contestants "weft", "weft blocking" and so on
// are the modes of "weft". Each mode is compared with the contestants that are not modes of it. In
// the lines of "weft blocking", ", blocking" follows the name of the row.
std::vector<Comparison> compare_modes(const RowResult& result, const std::string& subject,
                                      uint64_t seed);

// A mode of Weft in the rows of calls, and the peers and floors that do the same kind of work.
struct Mode {
  std::string contestant;
  std::vector<std::string> peers;
};

// For rows of calls. If the subject is the first mode, each mode is compared with its own peers,
// and its lines are named as by compare_modes. A contestant of no mode (another build) is a peer of
// the first mode. Any other subject is compared with every other contestant. A row of gifts has one
// more peer, "small call", from the same blocks. If no peer has the row, there is a line against
// the peer "none".
// The figures are p50 and p99, and the costs of the subject and of the peer. A mixed row adds the
// rate of the stream, and the share of it that the small calls leave.
std::vector<Comparison> compare_calls(const RowResult& result, const std::vector<Mode>& modes,
                                      const std::string& subject, uint64_t seed);

// For rows of many workers. The figures are the time to join and what the processes held: the most
// threads, descriptors and private memory of any worker, and the shared memory of all. If no peer
// has the row, there is a line against the peer "none".
std::vector<Comparison> compare_workers(const RowResult& result, const std::string& subject,
                                        uint64_t seed);

// For rows of agents. It adds figures: how long an observer waits for an action, how many calls a
// batch has, how long the agent takes to choose, and how often it chooses. If no peer has the row,
// there is a line against the peer "none".
std::vector<Comparison> compare_agents(const RowResult& result, const std::string& subject,
                                       uint64_t seed);

// For rows of a pipeline. It adds three peers that were measured in the same blocks. "schedule" and
// "fill-drain" are prices of schedules, in which messages and optimizers cost nothing. "unsplit" is
// one thread: the ratio is the speed-up.
std::vector<Comparison> compare_pipelines(const RowResult& result, const std::string& subject,
                                          uint64_t seed);

// Returns one line for each row and peer that every run has. The line has the medians of the runs'
// figures and the range of their ratios, which the interval of one run does not show.
std::vector<Comparison> across_runs(const std::vector<std::vector<Comparison>>& runs);

// Returns an array of {"row", "peer", "weft", "peer_value", "unit", "ratio", "low", "high"}. The
// value of the subject is under "weft". The figures follow, and "runs", the ratios, if there are
// several.
nlohmann::json to_json(const std::vector<Comparison>& comparisons);

}  // namespace weft::bench
