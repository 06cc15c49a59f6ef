// Runs every row on every contestant, interleaved: rounds of one block each, in random order.
//
// Only ratios inside one round are compared. The speed of the machine drifts by tens of percent,
// but within a round all contestants see nearly the same machine.
//
// Thread safety: one thread at a time.
// Lifetime: the groups and the functions in the options outlive the harness.
// Blocking: run() takes rows x rounds x contestants x block seconds.
// Errors: a contestant that fails in a row is restarted for the next row. The row keeps its error.
#pragma once

#include <cstdint>
#include <functional>
#include <memory>
#include <random>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "weft/bench/processes/group.h"
#include "weft/bench/rows.h"

namespace weft::bench {

// The blocks of one contestant in one row, one per counted round.
struct Series {
  std::string contestant;
  absl::Status status;  // Unimplemented: it has no such row; else the error that ended it
  std::vector<BlockResult> blocks;
};

struct RowResult {
  Row row;
  std::vector<Series> series;
  double stolen = 0;         // fraction of machine time taken by the hypervisor
  int disturbed_rounds = 0;  // counted rounds in which `stolen` was above kDisturbed
};

inline constexpr double kDisturbed = 0.02;

class Harness {
 public:
  struct Options {
    int rounds = 15;  // counted ones; one more runs first and is discarded
    double block_seconds = 0.3;
    double idle_seconds = 2;
    uint64_t seed = 1;
    std::function<void(double seconds)> sleep;            // pauses before the idle row
    std::function<void(const std::string& what)> report;  // gets progress and failures by line

    absl::Status validate() const;
  };

  Harness(std::vector<std::unique_ptr<Group>>& groups, Options options);

  // The contestants must have been started. Those that spin are paused between their blocks.
  RowResult run(const Row& row);

 private:
  using Order = std::vector<size_t>;

  Order shuffled(Order order);
  void run_round(const Row& row, bool counted, RowResult& result);
  void run_idle_round(const Row& row, bool counted, RowResult& result);
  void run_block_of(size_t contestant, const Row& row, bool counted, RowResult& result);
  void start_failed_ones_again();

  std::vector<std::unique_ptr<Group>>& groups_;
  const Options options_;
  std::mt19937_64 random_;
  std::vector<bool> failed_;
};

}  // namespace weft::bench
