// Prints what was measured: the ratios, and the times and costs of every contestant.
//
// Thread safety: pure functions.
#pragma once

#include <string>
#include <vector>

#include "weft/bench/harness.h"
#include "weft/bench/report/ratios.h"

namespace weft::bench {

std::string comparison_table(const std::vector<Comparison>& comparisons,
                             const std::string& subject);

// A table of training steps: their time without and with DDP, and the fraction that is
// communication. Empty if no row is about them.
std::string step_table(const std::vector<RowResult>& results);

// A table of an agent and its observers: how long an observer waits for an action, and how many
// calls are answered together. Empty if no row is about them.
std::string agent_table(const std::vector<RowResult>& results);

// A table of small calls beside a stream of tensors: how long they take, and the rate that the
// stream keeps. Empty if no row is about them.
std::string mixed_table(const std::vector<RowResult>& results);

// A table of many workers: how fast they join and call each other, and the most that one of them
// holds. It also shows by how much the private memory is larger than with one peer, and the shared
// memory of all. Empty if no row is about them.
std::string workers_table(const std::vector<RowResult>& results);

// A table of the times and costs of every contestant, for all its processes together.
std::string cost_table(const std::vector<RowResult>& results);

}  // namespace weft::bench
