#include "weft/tests/support/worker_world.h"

#include <chrono>
#include <thread>
#include <utility>

#include "weft/tests/support/cuttable_store.h"

namespace weft::testing {

WorkerWorld::WorkerWorld(size_t workers, const Customize& customize)
    : customize_(customize), ranks_(workers) {
  for (size_t rank = 0; rank < workers; ++rank) {
    members_.push_back(make_member(options_of(rank, workers)));
    if (customize_) customize_(rank, members_.back()->options);
  }
  join_again();
}

WorkerWorld::WorkerWorld(TransportKind kind) : kind_(kind) {}

WorkerWorld::~WorkerWorld() = default;

WorkerWorld::Customize WorkerWorld::over(TransportKind kind, Customize customize) {
  return [kind, customize = std::move(customize)](size_t rank, WorkerOptions& options) {
    if (kind != TransportKind::kInproc) options.transport = nullptr;
    if (kind == TransportKind::kGrpc) options.same_host = WorkerOptions::SameHost::kOff;
    if (customize) customize(rank, options);
  };
}

WorkerOptions WorkerWorld::options_of(size_t rank, size_t workers) const {
  WorkerOptions options;
  options.place.rank = static_cast<uint32_t>(rank);
  options.place.world_size = static_cast<uint32_t>(workers);
  options.store = store_;
  options.join_timeout = absl::Seconds(20);
  options.shutdown_timeout = std::chrono::seconds(20);
  if (kind_ == TransportKind::kInproc) {
    options.transport = [wires = wires_](Clock&) {
      return make_transport(TransportKind::kInproc, wires);
    };
  }
  return options;
}

WorkerOptions WorkerWorld::options_of(const std::string& name) const {
  WorkerOptions options = options_of(0, 1);
  options.place = {};
  options.name = name;
  options.dynamic = true;
  return options;
}

// Puts a store in front of the world's own that this worker alone is cut off from.
std::unique_ptr<WorkerWorld::Member> WorkerWorld::make_member(WorkerOptions options) const {
  auto member = std::make_unique<Member>();
  member->store = std::make_shared<CuttableStore>(store_);
  member->options = std::move(options);
  member->options.store = member->store;
  return member;
}

Worker& WorkerWorld::join(WorkerOptions options) {
  std::unique_ptr<Member> member = make_member(std::move(options));
  member->worker = std::make_unique<Worker>(Worker::join(member->options));
  members_.push_back(std::move(member));
  return *members_.back()->worker;
}

Worker& WorkerWorld::restart(size_t rank) {
  std::unique_ptr<Member> member = make_member(options_of(rank, ranks_));
  member->options.place.restart_count = members_[rank]->options.place.restart_count + 1;
  if (customize_) customize_(rank, member->options);
  member->worker = std::make_unique<Worker>(Worker::join(member->options));
  earlier_.push_back(std::exchange(members_[rank], std::move(member)));
  return *members_[rank]->worker;
}

void WorkerWorld::join_again() {
  std::vector<std::thread> threads;
  for (auto& member : members_) {
    threads.emplace_back([&member = *member] {
      member.worker = std::make_unique<Worker>(Worker::join(member.options));
    });
  }
  for (std::thread& thread : threads) thread.join();
}

void WorkerWorld::kill(Worker& worker) {
  for (auto& member : members_) {
    if (member->worker.get() == &worker) return kill(*member);
  }
}

void WorkerWorld::kill(Member& member) {
  member.killed = true;
  member.store->cut();
  for (const WorkerInfo& info : member.worker->workers()) {
    if (info.id == member.worker->id()) wires_->network.kill(info.address);
  }
}

void WorkerWorld::shutdown_all(ShutdownOptions options) {
  std::vector<Future<void>> ends;
  for (auto& member : members_) {
    if (member->worker == nullptr || member->killed) continue;
    ends.push_back(member->worker->shutdown_async(options));
  }
  wait_all(ends);
}

}  // namespace weft::testing
