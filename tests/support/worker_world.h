// Several Workers in one process, in a group of their own.
#pragma once

#include <memory>
#include <string>
#include <thread>
#include <vector>

#include <gtest/gtest.h>

#include "weft/rpc/inproc_transport.h"
#include "weft/rpc/memory_store.h"
#include "weft/worker/worker.h"

namespace weft::testing {

class WorkerWorld {
 public:
  using Customize = std::function<void(size_t rank, WorkerOptions& options)>;

  explicit WorkerWorld(size_t workers, const Customize& customize = nullptr)
      : wires_(clock_, {.name = "wires", .threads = 2}),
        network_(wires_),
        store_(std::make_shared<MemoryStore>()) {
    std::vector<WorkerOptions> options;
    for (size_t rank = 0; rank < workers; ++rank) {
      options.push_back(options_of(rank, workers));
      if (customize) customize(rank, options.back());
    }
    workers_.resize(workers);
    std::vector<std::thread> threads;
    for (size_t rank = 0; rank < workers; ++rank) {
      threads.emplace_back([this, rank, &options] {
        workers_[rank] = std::make_unique<Worker>(Worker::join(std::move(options[rank])));
      });
    }
    for (std::thread& thread : threads) thread.join();
  }
  ~WorkerWorld() {
    workers_.clear();
    wires_.stop();
  }

  Worker& operator[](size_t rank) { return *workers_[rank]; }
  static std::string name(size_t rank) { return "worker" + std::to_string(rank); }
  InprocNetwork& network() { return network_; }
  // As if the process had died: no goodbye.
  void kill(size_t rank) { network_.kill((*this)[rank].workers()[rank].address); }
  // Destroys the Worker object.
  void destroy(size_t rank) { workers_[rank] = nullptr; }

  // What a worker of this world's group joins with.
  WorkerOptions options_of(size_t rank, size_t workers) {
    WorkerOptions options;
    options.place.rank = static_cast<uint32_t>(rank);
    options.place.world_size = static_cast<uint32_t>(workers);
    options.store = store_;
    options.join_timeout = absl::Seconds(20);
    options.shutdown_timeout = std::chrono::seconds(20);
    options.transport = [this](Clock&) { return std::make_unique<InprocTransport>(network_); };
    return options;
  }

  // All at once, as the processes of a job do; the first error is thrown.
  void shutdown_all(ShutdownOptions options = {}) {
    std::vector<Future<void>> ends;
    for (auto& worker : workers_) ends.push_back(worker->shutdown_async(options));
    wait_all(ends);
  }

 private:
  SystemClock clock_;
  ThreadExecutor wires_;
  InprocNetwork network_;
  const std::shared_ptr<MemoryStore> store_;
  std::vector<std::unique_ptr<Worker>> workers_;
};

}  // namespace weft::testing
