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
        size_(1 + trainers),
        world_(size_, [&](size_t rank, WorkerOptions& options) { name(rank, options); }) {
    for (size_t rank = 0; rank < size_; ++rank) newest_.push_back(&world_[rank]);
  }
  ~JobWorld() {
    for (auto& objects : objects_) objects->clear();
  }

  // Returns the newest incarnation of a rank.
  Worker& operator[](size_t rank) { return *newest_.at(rank); }
  void kill(size_t rank) {
    world_.kill(rank);
    newest_.at(rank) = nullptr;
  }
  // Restarts a killed rank as weft_launch does. Waits for the ranks that live.
  Worker& revive(size_t rank) {
    if (rank == 0) objects_.back()->clear();  // the disk now belongs to the next incarnation
    WorkerOptions options = world_.options_of(rank, size_);
    options.place.restart_count = 1;
    name(rank, options);
    later_.push_back(std::make_unique<Worker>(Worker::join(std::move(options))));
    newest_.at(rank) = later_.back().get();
    return *later_.back();
  }
  void shutdown() {
    for (auto& objects : objects_) objects->clear();
    std::vector<Future<void>> ends;
    for (Worker* worker : newest_) {
      if (worker != nullptr) ends.push_back(worker->shutdown_async());
    }
    wait_all(ends);
  }

 private:
  void name(size_t rank, WorkerOptions& options) {
    options.name = examples::worker_name(static_cast<uint32_t>(rank));
    if (rank != 0) return;
    objects_.push_back(std::make_unique<examples::ServerObjects>(job_));
    objects_.back()->offer(options);
  }

  const examples::JobOptions job_;
  const size_t size_;
  std::vector<std::unique_ptr<examples::ServerObjects>> objects_;  // one per server incarnation
  WorkerWorld world_;
  std::vector<std::unique_ptr<Worker>> later_;
  std::vector<Worker*> newest_;  // by rank; null: killed
};

}  // namespace weft::testing
