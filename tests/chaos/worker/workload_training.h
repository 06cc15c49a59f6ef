// The current optimizer of a chaos worker's training thread.
#pragma once

#include <memory>
#include <vector>

#include <torch/optim/sgd.h>

#include "weft/dist_optim/distributed_optimizer.h"
#include "weft/tests/chaos/worker/functions.h"
#include "weft/tests/chaos/worker/workload.h"

namespace weft::chaos {

// One or two counters, and an optimizer over all of them.
struct Workload::Training {
  std::vector<WorkerId> servers;
  std::vector<HostedModule<CounterModule>> counters;
  std::unique_ptr<DistributedOptimizer<torch::optim::SGD>> optimizer;
  uint64_t steps_left = 0;
};

}  // namespace weft::chaos
