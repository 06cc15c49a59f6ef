// Runs one comparison, from the command line to the printed tables and the JSON file.
//
// Thread safety: one thread at a time.
// Blocking: run_comparison takes runs x rows x rounds x contestants x block seconds, plus the
// starts.
// Errors are printed on standard error. A contestant that fails is left out, and the result is
// EXIT_FAILURE.
#pragma once

#include <cstdint>
#include <functional>
#include <memory>
#include <string>
#include <vector>

#include "weft/bench/harness.h"
#include "weft/bench/processes/group.h"
#include "weft/bench/report/ratios.h"
#include "weft/bench/rows.h"

namespace weft::bench {

struct ComparisonOptions {
  std::string json_file;
  std::vector<std::string> rows;
  std::vector<std::string> contestants;
  std::string subject = "weft";
  std::vector<std::string> beside;  // NAME=PROGRAM
  Harness::Options harness;
  int runs = 1;  // each with new processes; several runs also report their spread
  bool quick = false;
  bool pin = false;
  bool busy = false;
};

// A contestant that the command line selected.
struct Entrant {
  std::string name;
  std::string child_name;  // its name in its own program
  std::string program;     // this program, or another build of it
};

// The rows and contestants of one subcommand.
struct Suite {
  std::vector<Row> rows;  // rows with equal numbers of processes are adjacent
  std::vector<std::string> contestants;
  // Returns null if this contestant has no row with this number of processes.
  std::function<std::unique_ptr<Group>(const Entrant& entrant, int processes)> make_group;
  std::function<std::vector<Comparison>(const RowResult& result, const std::string& subject,
                                        uint64_t seed)>
      compare;
};

int run_comparison(const Suite& suite, ComparisonOptions options);

}  // namespace weft::bench
