// One comparison from the command line to the printed tables and the file of JSON.
//
// Thread safety: one thread at a time.
// Blocking: run_comparison takes runs x rows x rounds x contestants x block seconds, and more to
// start.
// Errors: told on standard error; whoever fails is left out, and the result is EXIT_FAILURE.
#pragma once

#include <cstdint>
#include <functional>
#include <memory>
#include <string>
#include <vector>

#include "weft/bench/harness.h"
#include "weft/bench/processes/group.h"
#include "weft/bench/report.h"
#include "weft/bench/rows.h"

namespace weft::bench {

struct ComparisonOptions {
  std::string json_file;
  std::vector<std::string> rows;
  std::vector<std::string> contestants;
  std::string subject = "weft";
  std::vector<std::string> beside;  // NAME=PROGRAM
  Harness::Options harness;
  int runs = 1;  // each with new processes; of several the spread is told
  bool quick = false;
  bool pin = false;
  bool busy = false;
};

// A contestant as the command line names it.
struct Entrant {
  std::string name;
  std::string child_name;  // as its program knows it
  std::string program;     // this one, or another build of it
};

// What a subcommand can compare.
struct Suite {
  std::vector<Row> rows;  // those of equally many processes stand together
  std::vector<std::string> contestants;
  // Null: no row of so many processes is for this contestant.
  std::function<std::unique_ptr<Group>(const Entrant& entrant, int processes)> make_group;
  std::function<std::vector<Comparison>(const RowResult& result, const std::string& subject,
                                        uint64_t seed)>
      compare;
};

int run_comparison(const Suite& suite, ComparisonOptions options);

}  // namespace weft::bench
