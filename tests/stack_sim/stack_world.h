// Runs whole workers on virtual time in one thread. They have agents, references and autograd as in
// a job, over the in-process transport, with faults of the network and of workers.
//
// Only `run_one` (runs a task of some worker) and `advance` (to the next timer) make progress.
// Workers are named "w0", "w1", and so on. A restarted worker is a new incarnation of the same
// name.
//
// Thread safety: none. Deterministic: the same calls give the same history.
#pragma once

#include <cstdint>
#include <memory>
#include <set>
#include <string>
#include <utility>
#include <vector>

#include "weft/base/clock.h"
#include "weft/dist_autograd/autograd_driver.h"
#include "weft/rpc/membership/membership.h"
#include "weft/rpc/membership/quiescence.h"
#include "weft/rpc/rendezvous/memory_store.h"
#include "weft/rpc/transport/inproc_transport.h"
#include "weft/rpc/worker_runtime.h"
#include "weft/rref/rref_driver.h"
#include "weft/tests/stack_sim/sim_executor.h"
#include "weft/tests/support/cuttable_store.h"

namespace weft::sim {

// One incarnation of a worker.
struct Incarnation {
  WorkerInfo info;
  uint32_t rank = 0;
  ManualClock clock;
  SimExecutor executor;
  std::shared_ptr<testing::CuttableStore> store;  // shared with its list of death records
  std::unique_ptr<InprocTransport> transport;
  std::unique_ptr<rpc_internal::Agent> agent;
  std::unique_ptr<rpc_internal::Quiescence> quiescence;
  std::unique_ptr<rpc_internal::Membership> membership;
  std::shared_ptr<rpc_internal::WorkerRuntime> runtime;  // shared with handles
  std::shared_ptr<rref_internal::RRefDriver> references;
  std::shared_ptr<dist_autograd_internal::AutogradDriver> autograd;
  bool alive = true;
  bool joined = true;  // its program may run
  bool alone = false;  // was cut from the store: may have given up some peers alone
  // Objects that handlers left to timers. They are destroyed before the agent.
  std::vector<std::shared_ptr<void>> kept;

  bool in_group() const { return alive && joined && membership->standing().ok(); }
  // Returns what it holds. Empty: nothing.
  std::string left() const;
};

class StackWorld {
 public:
  explicit StackWorld(uint32_t workers);
  ~StackWorld();
  StackWorld(const StackWorld&) = delete;
  StackWorld& operator=(const StackWorld&) = delete;

  uint32_t size() const { return static_cast<uint32_t>(newest_.size()); }
  // The newest incarnation of a rank.
  Incarnation& incarnation(uint32_t rank) { return *newest_[rank]; }
  const std::vector<std::unique_ptr<Incarnation>>& incarnations() const { return incarnations_; }
  Incarnation* find(const RpcRuntime* runtime);
  Nanoseconds now() const { return now_; }

  // ---- progress
  size_t ready() const;
  void run_one(size_t choice);
  // Advances to the next timer of a live worker or of the network. Returns false if that is after
  // `limit`.
  bool advance(Nanoseconds limit);

  // ---- faults
  void kill(uint32_t rank);
  void restart(uint32_t rank);
  // Closes all connections between the two. Frames in flight are lost.
  void sever(uint32_t a, uint32_t b);
  // Stops all frames in one direction until heal().
  void cut(uint32_t from, uint32_t to);
  void heal(uint32_t from, uint32_t to);
  void heal_all();
  // The rendezvous store stops answering this worker for a while. Pairs then give up each other
  // alone.
  void cut_store(uint32_t rank);
  void mend_stores();
  bool is_cut(uint32_t from, uint32_t to) const { return cuts_.contains({from, to}); }
  // Rates per hundred thousand frames. Frames vanish on connections that stay open.
  void set_frame_faults(uint32_t duplicates, uint32_t vanishing, uint64_t seed);

  struct Counts {
    uint64_t frames = 0, dropped = 0, duplicated = 0, vanished = 0, heartbeats = 0;
  };
  const Counts& counts() const { return counts_; }

 private:
  Incarnation& add(uint32_t rank, uint32_t incarnation);
  void start(Incarnation& incarnation, std::vector<WorkerInfo> members, bool joiner);
  void end(Incarnation& incarnation);
  InprocNetwork::Fate fate(const FrameHeader& header);

  Nanoseconds now_{0};
  ManualClock wires_clock_;
  SimExecutor wires_;
  InprocNetwork network_{wires_clock_, wires_};
  const std::shared_ptr<MemoryStore> store_ = std::make_shared<MemoryStore>();
  std::vector<std::unique_ptr<Incarnation>> incarnations_;
  std::vector<Incarnation*> newest_;
  std::set<std::pair<uint32_t, uint32_t>> cuts_;
  uint32_t duplicates_ = 0, vanishing_ = 0;
  uint64_t random_ = 1;
  Counts counts_;
};

}  // namespace weft::sim
