// One simulated run of whole workers: a seeded program, a seeded schedule, seeded faults, and the
// invariants that hold whatever they do.
//
// Invariants: every call is answered once and its `ran` is true; no function runs twice; committed
// gradients are one process's; owners that outlive an optimizer's steps have applied the same ones,
// and those that the trainer was told of; once faults have stopped and everything was let go, no
// worker that is in the group holds a call, reference, value, context, pass or send; all survivors
// agree on who is dead; a shutdown ends in good order.
//
// Thread safety: none; one run at a time in a process (handlers find their run by a global).
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
  uint64_t hash = 0;  // of the history: equal seeds, equal hashes
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
