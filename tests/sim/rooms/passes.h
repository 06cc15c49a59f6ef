// A worker's AutogradDriver in the simulator: recording, local graphs, staged gradients and timers
// around the library's ContextCore. Graphs are tests/dist_autograd/passes/fake_graph.h: integers,
// so results are known exactly.
//
// Thread safety: none.
#pragma once

#include <deque>
#include <map>
#include <memory>
#include <set>
#include <string>
#include <vector>

#include "weft/dist_autograd/passes/context_core.h"
#include "weft/tests/dist_autograd/passes/fake_graph.h"
#include "weft/tests/sim/world/messages.h"
#include "weft/tests/sim/world/room.h"

namespace weft::sim {

class Worker;
class World;

// The operations recorded under a context, on all workers together. The worker of a value is a
// slot.
struct ContextFacts {
  ContextId id;
  Slot creator = kNobody;
  dist_autograd_internal::Program program;
  std::map<Slot, std::vector<int>> usable;  // values that later work of a worker may use
  bool released = false;
};

class Passes final : public Room {
 public:
  explicit Passes(Worker& worker);
  ~Passes() override;

  // ---- the program
  void open_context();
  ContextId some_context();  // one that is live here; invalid if there is none
  void release_one();
  void backward();
  void cancel_one();

  // ---- for calls. They return false if they refused and nothing happened. `values` are those that
  // the handler has made so far under the context. It may be null: then they are those of the
  // program.
  bool record_send(const ContextId& context, WorkerId to, std::vector<int>* values,
                   dist_autograd_internal::AutogradMetadata* metadata, size_t* transfer);
  bool record_receive(WorkerId from, const ContextId& context,
                      const dist_autograd_internal::AutogradMetadata& metadata, size_t transfer,
                      std::vector<int>* values);

  // Room.
  void on_post(WorkerId from, const std::shared_ptr<void>& body) override;
  void on_stale_post(WorkerId from, const std::shared_ptr<void>& body) override;
  void on_peer_dead(WorkerId dead) override;
  void on_event(const Event& event) override;
  void let_go() override;
  void check() const override;
  std::string leftovers() const override;

  const dist_autograd_internal::ContextCore& core() const { return core_; }
  size_t running() const { return runs_.size(); }
  bool works(const dist_autograd_internal::PassId& pass) const;
  bool holds(const dist_autograd_internal::PassId& pass) const;
  // The gradients that can be read here, by context.
  const std::map<ContextId, std::map<int, uint64_t>>& readable() const { return readable_; }

 private:
  struct LocalRun {
    std::unique_ptr<dist_autograd_internal::FakeGraph> graph;
    std::deque<dist_autograd_internal::LocalWork> strand;
    bool stopped = false;
    int holds = 0;
  };

  struct Timer {
    uint64_t number = 0;
    TimePoint deadline;
  };

  void act(dist_autograd_internal::AutogradActions& actions);
  void engage(const dist_autograd_internal::backward::EngageLocal& start);
  // Null, after a violation: the pass is not engaged here.
  LocalRun* engaged(const dist_autograd_internal::PassId& pass);
  void enqueue(dist_autograd_internal::PassId pass, dist_autograd_internal::LocalWork work);
  void merge(const dist_autograd_internal::PassId& pass, LocalRun& run);
  void run_local(const dist_autograd_internal::PassId& pass);
  void hand_out(dist_autograd_internal::backward::Send send);
  void send_piggybacked();
  void post(WorkerId to, std::shared_ptr<AutogradPost> batch);
  int make_value(ContextFacts& facts, const std::vector<int>& from);
  std::vector<int>& usable(ContextFacts& facts);

  Worker& worker_;
  World& world_;
  dist_autograd_internal::ContextCore core_;
  std::map<dist_autograd_internal::PassId, LocalRun> runs_;
  std::map<dist_autograd_internal::PassId, Timer> timers_;
  std::map<ContextId, std::map<int, uint64_t>> readable_;
  std::map<WorkerId, std::vector<dist_autograd_internal::AutogradMessage>> piggybacked_;
  bool piggyback_armed_ = false;
  uint64_t last_timer_ = 0;
  std::vector<dist_autograd_internal::PassId> started_;  // started here, newest last
  std::set<ContextId> open_;                             // created here and not released
  std::string broken_;                                   // an error that a graph reported
};

}  // namespace weft::sim
