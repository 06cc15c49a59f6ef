// Turns the blocks of all contestants into ratios with intervals: a table to read and JSON to keep.
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

// The least and most of six values have the median between them 97 times of 100.
inline constexpr size_t kRoundsOfAnInterval = 6;

// One line of the result: the subject against one peer in one row.
struct Comparison {
  std::string row;
  std::string peer;
  double subject_value = 0;  // medians over the rounds, in `unit`
  double peer_value = 0;
  std::string unit;
  double ratio = 0;  // the median of the within-round ratios; above 1: the subject is better
  // Its 95 % interval; of fewer rounds than kRoundsOfAnInterval their least and most.
  double low = 0;
  double high = 0;
  size_t rounds = 0;
  // Of a line across runs: the ratio of each. Then `low` and `high` are the least and most of them.
  std::vector<double> runs = {};
  // Further figures of the subject, which go into the JSON: name and median.
  std::vector<std::pair<std::string, double>> figures = {};
};

// The subject against every other contestant that has all rounds of the row; empty when the subject
// itself has not.
std::vector<Comparison> compare(const RowResult& result, const std::string& subject, uint64_t seed);

// A system that is measured in several modes: the contestants "weft", "weft blocking" and so on are
// the modes of "weft". Each is compared with those that are no modes of it; the lines of "weft
// blocking" have ", blocking" behind the row's name.
std::vector<Comparison> compare_modes(const RowResult& result, const std::string& subject,
                                      uint64_t seed);

// For rows of agents: their figures (how long an observer waits for an action, calls in one batch,
// how long the agent takes to choose and how often it does), and a line against the peer "none"
// where no peer has the row.
std::vector<Comparison> compare_agents(const RowResult& result, const std::string& subject,
                                       uint64_t seed);

// For rows of a pipeline: besides the peers two more that were measured in the same blocks, "ideal"
// (a pipeline that never waits: the ratio is the share of it that was reached) and "unsplit" (one
// thread: the ratio is the speed-up).
std::vector<Comparison> compare_pipelines(const RowResult& result, const std::string& subject,
                                          uint64_t seed);

// One line for each row and peer that every run has: the medians of the runs' figures, and how far
// the runs' ratios lie apart, which the interval of one run does not tell.
std::vector<Comparison> across_runs(const std::vector<std::vector<Comparison>>& runs);

// An array of {"row", "peer", "weft", "peer_value", "unit", "ratio", "low", "high"}; the subject's
// value stands under "weft"; figures follow, and "runs", the ratios, if there are several.
nlohmann::json to_json(const std::vector<Comparison>& comparisons);

std::string comparison_table(const std::vector<Comparison>& comparisons,
                             const std::string& subject);

// Of training steps: what they take without and with DDP, and the share that is communication.
// Empty when no row is about them.
std::string step_table(const std::vector<RowResult>& results);

// Of an agent and its observers: how long an observer waits for an action, and how many calls are
// answered together. Empty when no row is about them.
std::string agent_table(const std::vector<RowResult>& results);

// What every contestant's operations took and cost, all its processes together.
std::string cost_table(const std::vector<RowResult>& results);

}  // namespace weft::bench
