// The workers of a parameter-server job in one process. Rank 0 is the server, named as in the job.
#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>
#include <vector>

#include "weft/examples/parameter_server/options.h"
#include "weft/tests/examples/parameter_server/program.h"
#include "weft/tests/support/worker_world.h"

namespace weft::testing {

class JobWorld {
 public:
  JobWorld(uint32_t trainers, const examples::JobOptions& job)
      : job_(job),
        world_(1 + trainers, [&](size_t rank, WorkerOptions& options) { name(rank, options); }) {}
  ~JobWorld() { clear_objects(); }

  // Returns the newest incarnation of a rank.
  Worker& operator[](size_t rank) { return world_[rank]; }
  // The newest incarnation of the server.
  const examples::ServerObjects& server() const { return *objects_.back(); }
  void kill(size_t rank) { world_.kill(rank); }
  // Restarts a killed rank as weft_launch does. Waits for the ranks that live.
  Worker& revive(size_t rank) {
    if (rank == 0) objects_.back()->clear();  // the disk now belongs to the next incarnation
    return world_.restart(rank);
  }
  void shutdown() {
    clear_objects();
    world_.shutdown_all();
  }

 private:
  void clear_objects() {
    for (auto& objects : objects_) objects->clear();
  }
  void name(size_t rank, WorkerOptions& options) {
    options.name = examples::worker_name(static_cast<uint32_t>(rank));
    if (rank != 0) return;
    objects_.push_back(std::make_unique<examples::ServerObjects>(job_));
    objects_.back()->offer(options);
  }

  const examples::JobOptions job_;
  std::vector<std::unique_ptr<examples::ServerObjects>> objects_;  // one per server incarnation
  WorkerWorld world_;
};

}  // namespace weft::testing
