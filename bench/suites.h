// The comparisons of weft_bench: which rows each of them has, on which contestants, and who is
// compared with whom.
//
// Thread safety: free functions.
#pragma once

#include <string>

#include "weft/bench/comparison.h"
#include "weft/bench/rows.h"

namespace weft::bench {

struct PythonOptions {
  std::string python = WEFT_SOURCE_DIR "/.deps/oracles/bin/python";
};

struct RlSuiteOptions : PythonOptions {
  int observers = kMostObservers;  // the number of observer processes; rows with more are left out
  int torch_observers = 16;        // of the peers; each is a Python process with torch, 300 MB
};

struct DdpSuiteOptions : PythonOptions {
  int spin_us = 100;
};

// Calls, references and autograd between two processes. `pin`: clients on processor 0, servers on
// processor 1.
Suite calls_suite(bool pin);

// The same over plain TCP, unix sockets and mutual TLS.
Suite security_suite(bool pin);

// Joining, and calls of 2 to `workers` workers to all others, in each of these modes. `pin`: worker
// r on processor r modulo their number.
Suite workers_suite(int workers, bool pin,
                    const std::vector<WeftMode>& modes = {WeftMode::kDefault});

// Collectives and training steps. `pin`: as for workers.
Suite ddp_suite(const DdpSuiteOptions& options, bool pin);

// An agent and its observers.
Suite rl_suite(const RlSuiteOptions& options);

// ResNet50 in two shards.
Suite pipeline_suite(const PythonOptions& options);

}  // namespace weft::bench
