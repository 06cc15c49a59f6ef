// The workers of a parameter-server job in one process: rank 0 is the server, named as in the job.
#pragma once

#include <cstddef>
#include <cstdint>

#include "weft/examples/parameter_server/options.h"
#include "weft/examples/parameter_server/server.h"
#include "weft/tests/support/worker_world.h"

namespace weft::testing {

class JobWorld {
 public:
  JobWorld(uint32_t trainers, const examples::JobOptions& job)
      : objects_(job), world_(1 + trainers, [&](size_t rank, WorkerOptions& options) {
          options.name = examples::worker_name(static_cast<uint32_t>(rank));
          if (rank == 0) objects_.offer(options);
        }) {}

  Worker& operator[](size_t rank) { return world_[rank]; }
  void kill(size_t rank) { world_.kill(rank); }
  void shutdown() {
    objects_.clear();
    world_.shutdown_all();
  }

 private:
  examples::ServerObjects objects_;
  WorkerWorld world_;
};

}  // namespace weft::testing
