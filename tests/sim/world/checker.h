// The books of a run: they record what happened and check the invariants.
//
// Books see everything at once, which no worker can. They know which incarnation is dead before any
// worker is told, which call ran where, and the exact gradient of every leaf. They check each entry
// when it is made. World checks the state of all workers every so many events and at the end.
//
// Thread safety: none.
#pragma once

#include <map>
#include <memory>
#include <set>
#include <string>
#include <unordered_map>
#include <vector>

#include "weft/rref/internal/ownership_core.h"
#include "weft/tests/dist_autograd/passes/fake_graph.h"
#include "weft/tests/sim/report.h"
#include "weft/tests/sim/world/messages.h"
#include "weft/tests/sim/world/schedule.h"

namespace weft::sim {

class Worker;
class World;

// Calls: each runs at most once and completes exactly once for its caller. Its result says truly
// whether it ran.
class CallBook {
 public:
  explicit CallBook(World& world) : world_(world) {}

  uint64_t open(Slot caller, WorkerId callee, Operation operation);
  void arrive(uint64_t ledger, WorkerId at);
  void execute(uint64_t ledger, WorkerId at);
  // The callee answers "not executed".
  void refuse(uint64_t ledger);
  void resolve(uint64_t ledger, Outcome outcome);
  // Records a result that was handed to the session, in case the session drops it.
  void keep_result(WorkerId caller, const FrameHeader& header, const ReplyBody& body, size_t bytes);
  ReplyBody lost_result(Slot caller, const FrameHeader& header);
  // At the end: every call of an incarnation that did not crash must be complete.
  void check_all_resolved();

 private:
  struct Facts {
    Slot caller = kNobody;
    WorkerId callee;
    Operation operation = Operation::kCall;
    Outcome outcome = Outcome::kUnresolved;
    uint8_t arrived = 0, executed = 0;
    bool promised_not_run = false;
  };
  std::string describe(uint64_t ledger) const;

  World& world_;
  std::vector<Facts> calls_;
  uint64_t checked_ = 0;
  std::map<std::pair<WorkerId, uint64_t>, ReplyBody> large_results_;  // caller, call
};

// References: which worker holds which fork, and which value exists.
class OwnershipBook {
 public:
  explicit OwnershipBook(World& world) : world_(world) {}

  void create(RRefId rref, ForkId fork, WorkerId owner, WorkerId creator);
  void created(RRefId rref);
  void value_set(RRefId rref);
  void excuse(RRefId rref);  // its creation failed, so it may be lost
  void fork(const rref_internal::Reference& reference, WorkerId to);
  void read(const rref_internal::Reference& reference, WorkerId at);
  void decide(ForkId fork);
  void hold(Slot at, const rref_internal::Handle& handle);
  void drop(Slot at, const rref_internal::Handle& handle);

  void on_send(WorkerId at, const rref_internal::Message& message);
  void on_free(Worker& owner, RRefId rref);
  void on_confirmed(Worker& at, const rref_internal::Handle& handle);
  void on_lost(Worker& at, const rref_internal::Handle& handle, bool confirmed);
  void on_fetched(WorkerId at, RRefId rref);
  // A confirmed fork of a live worker must protect the value of a live owner.
  void check_held(const Worker& at, const rref_internal::Handle& handle, WorkerId owner);

 private:
  struct ForkFacts {
    RRefId rref;
    WorkerId owner, to;
    ForkId parent;
    std::vector<ForkId> children;
    bool decided = false, confirmed = false, held = false;
    int deletes = 0;
  };
  struct RRefFacts {
    WorkerId owner;
    bool created = false, value = false, excused = false;
    int freed = 0;
    std::vector<ForkId> forks;
  };
  bool is_decided(const ForkFacts& fork) const;

  World& world_;
  // Only looked up, never iterated, because the order of a hash map is not deterministic.
  std::unordered_map<RRefId, RRefFacts> rrefs_;
  std::unordered_map<ForkId, ForkFacts> forks_;
};

// Passes: gradients are sums over paths, and a commit is decided once. No counted message is in
// flight then.
class PassBook {
 public:
  explicit PassBook(World& world) : world_(world) {}

  // Maps passes to numbers, for events.
  uint64_t number(const dist_autograd_internal::PassId& pass);
  const dist_autograd_internal::PassId& id(uint64_t number) const { return ids_[number]; }

  void start(const dist_autograd_internal::PassId& pass, Slot initiator,
             std::vector<dist_autograd_internal::Program::Root> roots);
  const std::vector<dist_autograd_internal::Program::Root>& roots(
      const dist_autograd_internal::PassId& pass) const {
    return passes_.at(pass).roots;
  }
  void on_sent(Slot from, WorkerId to, const dist_autograd_internal::AutogradMessage& message,
               bool counted);
  void on_read(Slot at, const dist_autograd_internal::AutogradMessage& message, bool counted);
  void merge(const dist_autograd_internal::PassId& pass, Slot at,
             const std::map<int, uint64_t>& stage);
  void engage(const dist_autograd_internal::PassId& pass, Slot at);
  void part_dropped(const dist_autograd_internal::PassId& pass, Slot at);
  void complete(const dist_autograd_internal::PassId& pass,
                const dist_autograd_internal::PassFailure& outcome);
  // When the programs have stopped: all passes are complete, and their gradients are where they
  // must be.
  void check_ended();

 private:
  struct Facts {
    Slot initiator = kNobody;
    std::vector<dist_autograd_internal::Program::Root> roots;
    bool started = false, sealed = false, committed = false, completed = false;
    int64_t under_way = 0;  // counted messages that were sent and not read
    std::map<int, uint64_t> truth;
    std::set<Slot> merged;
    std::set<Slot> dropped;
    std::set<Slot> told;  // workers that got an ABORT
  };
  void check_quiet(const dist_autograd_internal::PassId& pass, const Facts& facts,
                   const char* when);

  World& world_;
  std::map<dist_autograd_internal::PassId, Facts> passes_;
  std::map<dist_autograd_internal::PassId, uint64_t> numbers_;
  std::vector<dist_autograd_internal::PassId> ids_;
};

struct Checker {
  explicit Checker(World& world) : calls(world), references(world), passes(world) {}
  CallBook calls;
  OwnershipBook references;
  PassBook passes;
};

}  // namespace weft::sim
