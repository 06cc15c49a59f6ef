// Runs several Workers in one process, in a group of their own.
//
// The constructor joins all workers. If one cannot join, the test program terminates. They use the
// inproc transport unless `customize` says otherwise.
//
// Thread safety: none for this object; its workers may be used from any thread.
// Blocking: the constructor, join_again() and shutdown_all() wait up to 20 s, unless `customize`
// sets other timeouts.
#pragma once

#include <memory>
#include <string>
#include <thread>
#include <vector>

#include <gtest/gtest.h>

#include "weft/rpc/rendezvous/memory_store.h"
#include "weft/rpc/transport/inproc_transport.h"
#include "weft/tests/support/cuttable_store.h"
#include "weft/tests/support/transport_kind.h"
#include "weft/worker/worker.h"

namespace weft::testing {

// The network of one test cluster. Its transports share it, since a worker that leaves may hold the
// last one.
struct Wires {
  SystemClock clock;
  ThreadExecutor executor{clock, {.name = "wires", .threads = 2}};
  InprocNetwork network{clock, executor};
  ~Wires() { executor.stop(); }
};

class WiredTransport final : public Transport {
 public:
  explicit WiredTransport(std::shared_ptr<Wires> wires)
      : wires_(std::move(wires)), inner_(wires_->network) {}
  absl::Status listen() override { return inner_.listen(); }
  std::string address() const override { return inner_.address(); }
  absl::Status start(PeerIdentity self, TransportSink* sink) override {
    return inner_.start(std::move(self), sink);
  }
  void connect(const std::string& address, const PeerIdentity& expected, TimePoint deadline,
               ConnectCallback callback) override {
    inner_.connect(address, expected, deadline, std::move(callback));
  }
  void stop() override { inner_.stop(); }

 private:
  const std::shared_ptr<Wires> wires_;
  InprocTransport inner_;
};

class WorkerWorld {
 public:
  using Customize = std::function<void(size_t rank, WorkerOptions& options)>;

  explicit WorkerWorld(size_t workers, const Customize& customize = nullptr) {
    std::vector<WorkerOptions> options;
    for (size_t rank = 0; rank < workers; ++rank) {
      options.push_back(options_of(rank, workers));
      stores_.push_back(std::make_shared<CuttableStore>(store_));
      options.back().store = stores_.back();
      if (customize) customize(rank, options.back());
    }
    workers_.resize(workers);
    options_ = std::move(options);
    join_again();
  }
  // Joins all workers at the same time, each with the options that it had. Call it after
  // shutdown_all().
  void join_again() {
    std::vector<std::thread> threads;
    for (size_t rank = 0; rank < workers_.size(); ++rank) {
      threads.emplace_back([this, rank] {
        workers_[rank] = std::make_unique<Worker>(Worker::join(options_[rank]));
      });
    }
    for (std::thread& thread : threads) thread.join();
  }
  // Makes the workers use the given transport, and then applies `customize`.
  static Customize over(TransportKind kind, Customize customize = nullptr) {
    return [kind, customize = std::move(customize)](size_t rank, WorkerOptions& options) {
      if (kind == TransportKind::kGrpc) options.transport = nullptr;
      if (customize) customize(rank, options);
    };
  }

  Worker& operator[](size_t rank) { return *workers_[rank]; }
  static std::string name(size_t rank) { return "worker" + std::to_string(rank); }
  InprocNetwork& network() { return wires_->network; }
  const std::shared_ptr<MemoryStore>& store() const { return store_; }
  // Acts as if the process had died: it says no goodbye, and it can no longer write to the store.
  void kill(size_t rank) {
    stores_[rank]->cut();
    wires_->network.kill((*this)[rank].workers()[rank].address);
  }
  void destroy(size_t rank) { workers_[rank] = nullptr; }

  // The options with which a worker of this group joins. Use it for a worker that joins later.
  WorkerOptions options_of(size_t rank, size_t workers) {
    WorkerOptions options;
    options.place.rank = static_cast<uint32_t>(rank);
    options.place.world_size = static_cast<uint32_t>(workers);
    options.store = store_;
    options.join_timeout = absl::Seconds(20);
    options.shutdown_timeout = std::chrono::seconds(20);
    options.transport = [wires = wires_](Clock&) {
      return std::make_unique<WiredTransport>(wires);
    };
    return options;
  }

  // Shuts all workers down at the same time, as the processes of a job do, and throws the first
  // error.
  void shutdown_all(ShutdownOptions options = {}) {
    std::vector<Future<void>> ends;
    for (auto& worker : workers_) ends.push_back(worker->shutdown_async(options));
    wait_all(ends);
  }

 private:
  const std::shared_ptr<Wires> wires_ = std::make_shared<Wires>();
  const std::shared_ptr<MemoryStore> store_ = std::make_shared<MemoryStore>();
  std::vector<std::shared_ptr<CuttableStore>> stores_;  // by rank, of the first incarnations
  std::vector<WorkerOptions> options_;                  // by rank
  std::vector<std::unique_ptr<Worker>> workers_;
};

}  // namespace weft::testing
