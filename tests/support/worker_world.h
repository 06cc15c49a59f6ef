// Runs several Workers in one process, in a group of their own.
//
// The constructor joins the ranks of a static group. If one cannot join, the test program
// terminates. Further workers may join later, and killed ranks may come back. All use the inproc
// transport unless `customize` or the constructor says otherwise.
//
// Thread safety: none for this object; its workers may be used from any thread.
// Blocking: the constructor, join(), restart(), join_again() and shutdown_all() wait up to 20 s,
// unless `customize` sets other timeouts.
#pragma once

#include <cstddef>
#include <functional>
#include <memory>
#include <string>
#include <vector>

#include "weft/rpc/rendezvous/memory_store.h"
#include "weft/tests/support/agent_world.h"
#include "weft/worker/worker.h"

namespace weft::testing {

class CuttableStore;

class WorkerWorld {
 public:
  using Customize = std::function<void(size_t rank, WorkerOptions& options)>;

  explicit WorkerWorld(size_t workers, const Customize& customize = nullptr);
  // A world without workers; a test lets them join.
  explicit WorkerWorld(TransportKind kind);
  ~WorkerWorld();
  // Makes the workers use the given transport, and then applies `customize`.
  static Customize over(TransportKind kind, Customize customize = nullptr);

  // Returns the newest incarnation of a rank.
  Worker& operator[](size_t rank) { return *members_[rank]->worker; }
  static std::string name(size_t rank) { return "worker" + std::to_string(rank); }
  InprocNetwork& network() { return wires_->network; }
  const std::shared_ptr<MemoryStore>& store() const { return store_; }

  // The options with which a worker joins: a rank of a static group, or a member of a dynamic one.
  WorkerOptions options_of(size_t rank, size_t workers) const;
  WorkerOptions options_of(const std::string& name) const;

  // Joins one more worker, which lives as long as this object. Its store must be that of
  // options_of().
  Worker& join(WorkerOptions options);
  Worker& join(const std::string& name) { return join(options_of(name)); }
  // Restarts a killed rank as weft_launch does: as a new incarnation, with customized options.
  Worker& restart(size_t rank);
  // Joins all workers at the same time, each with the options that it had. Call it after
  // shutdown_all().
  void join_again();

  // Acts as if the process had died: it says no goodbye, and it can no longer write to the store.
  void kill(size_t rank) { kill(*members_[rank]); }
  void kill(Worker& worker);
  void destroy(size_t rank) { members_[rank]->worker = nullptr; }

  // Shuts all workers down at the same time, as the processes of a job do, and throws the first
  // error. Leaves out workers that were killed or destroyed.
  void shutdown_all(ShutdownOptions options = {});

 private:
  struct Member {
    std::shared_ptr<CuttableStore> store;  // shared with the worker
    WorkerOptions options;
    std::unique_ptr<Worker> worker;  // null: destroyed
    bool killed = false;
  };

  std::unique_ptr<Member> make_member(WorkerOptions options) const;
  void kill(Member& member);

  const TransportKind kind_ = TransportKind::kInproc;
  const Customize customize_;
  const WiresPtr wires_ = std::make_shared<Wires>();
  const std::shared_ptr<MemoryStore> store_ = std::make_shared<MemoryStore>();
  std::vector<std::unique_ptr<Member>> earlier_;  // incarnations that were killed and came back
  std::vector<std::unique_ptr<Member>> members_;  // the ranks, then those that joined later
  const size_t ranks_ = 0;
};

}  // namespace weft::testing
