// Runs Workers of a dynamic group in one process. Tests join, kill and stop them one by one.
//
// Thread safety: none for this object; its workers may be used from any thread.
// Blocking: join waits up to 20 s, and so does a shutdown.
#pragma once

#include <chrono>
#include <map>
#include <memory>
#include <string>
#include <vector>

#include "weft/rpc/rendezvous/memory_store.h"
#include "weft/tests/support/cuttable_store.h"
#include "weft/tests/support/transport_kind.h"
#include "weft/tests/support/worker_world.h"
#include "weft/worker/worker.h"

namespace weft::testing {

class DynamicWorld {
 public:
  explicit DynamicWorld(TransportKind kind = TransportKind::kInproc) : kind_(kind) {}
  ~DynamicWorld() { workers_.clear(); }

  WorkerOptions options_of(const std::string& name) {
    WorkerOptions options;
    options.name = name;
    options.dynamic = true;
    options.store = store_;
    options.join_timeout = absl::Seconds(20);
    options.shutdown_timeout = std::chrono::seconds(20);
    if (kind_ == TransportKind::kInproc) {
      options.transport = [wires = wires_](Clock&) {
        return std::make_unique<WiredTransport>(wires);
      };
    }
    return options;
  }
  Worker& join(const std::string& name) { return join(options_of(name)); }
  Worker& join(WorkerOptions options) {
    const auto store = std::make_shared<CuttableStore>(store_);
    options.store = store;
    workers_.push_back(std::make_unique<Worker>(Worker::join(std::move(options))));
    stores_[workers_.back()->id()] = store;
    return *workers_.back();
  }
  // Acts as if its process had died: it says no goodbye.
  void kill(Worker& worker) {
    stores_.at(worker.id())->cut();
    for (const WorkerInfo& member : worker.workers()) {
      if (member.id == worker.id()) wires_->network.kill(member.address);
    }
  }
  InprocNetwork& network() { return wires_->network; }
  const std::shared_ptr<MemoryStore>& store() { return store_; }

 private:
  const TransportKind kind_;
  const std::shared_ptr<Wires> wires_ = std::make_shared<Wires>();
  const std::shared_ptr<MemoryStore> store_ = std::make_shared<MemoryStore>();
  std::map<WorkerId, std::shared_ptr<CuttableStore>> stores_;
  std::vector<std::unique_ptr<Worker>> workers_;
};

}  // namespace weft::testing
