// Whole workers on virtual time, in one thread: agents, references and autograd as in a job, over
// the in-process transport, with faults of the network and of workers.
//
// A world only moves by `run_one` (a task of somebody) and `advance` (to the next timer). Workers
// are named "w0", "w1", ...; a restarted one is a new incarnation of the same name.
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

// One life of a worker.
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
  bool alone = false;  // was cut from the store: may have parted from one and not from another
  // What handlers left to timers; goes before the agent does.
  std::vector<std::shared_ptr<void>> kept;

  bool in_group() const { return alive && joined && membership->standing().ok(); }
  // What it holds; empty for nothing.
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

  // ---- what moves it
  size_t ready() const;
  void run_one(size_t choice);
  // To the next timer of a living worker or of the network; false if that is later than `limit`.
  bool advance(Nanoseconds limit);

  // ---- faults
  void kill(uint32_t rank);
  void restart(uint32_t rank);
  // All connections between the two end; what is in flight is lost.
  void sever(uint32_t a, uint32_t b);
  // Nothing gets from the one to the other any more, until the cut is healed.
  void cut(uint32_t from, uint32_t to);
  void heal(uint32_t from, uint32_t to);
  void heal_all();
  // The rendezvous store answers this worker no more, for a while: death records hold for pairs
  // alone.
  void cut_store(uint32_t rank);
  void mend_stores();
  bool is_cut(uint32_t from, uint32_t to) const { return cuts_.contains({from, to}); }
  // Of a hundred thousand frames. Those that vanish do so on connections that live on.
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
