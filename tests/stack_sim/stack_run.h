// One simulated run of whole workers, with a seeded program, schedule and faults. It checks
// invariants that must hold in every run.
//
// Invariants: Every call is answered once, and its `ran` is true. No function runs twice. Committed
// gradients equal those of one process. Owners that outlive the steps of an optimizer have applied
// the same steps, and those that the trainer was told of. When faults have stopped and everything
// was released, no worker of the group holds a call, reference, value, context, pass or send. All
// survivors agree which workers are dead. A shutdown completes in good order.
//
// Thread safety: none; one run at a time in a process, because handlers find their run by a global.
#pragma once

#include <cstdint>
#include <map>
#include <string>
#include <vector>

namespace weft::sim {

struct RunOptions {
  uint64_t seed = 1;
  uint32_t steps = 120;  // of the program
  bool faults = true;
  bool trace = false;  // to standard error
};

struct RunReport {
  std::vector<std::string> violations;
  uint64_t hash = 0;  // hash of the history: equal for equal seeds
  uint64_t events = 0;
  uint64_t calls = 0;
  uint64_t frames = 0;
  std::map<std::string, uint64_t> operations;  // of the program, by kind and outcome
  std::map<std::string, uint64_t> faults;      // by kind
  std::map<std::string, uint64_t> errors;      // of calls, by code
  double virtual_seconds = 0;
};

RunReport simulate(const RunOptions& options);

}  // namespace weft::sim
