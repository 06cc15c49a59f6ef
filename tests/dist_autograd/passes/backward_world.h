// Runs several workers' ContextCores with fake local graphs under a seeded schedule.
//
// This class is the driver, the network, the clock and the faults. It checks the protocol's
// invariants after every event, and keeps the first violation in `broken()`. A run releases every
// context at last and checks that no live worker has a trace of it.
//
// Thread safety: none.
// Protocol: docs/backward_protocol.md, invariants I1 to I7.
#pragma once

#include <deque>
#include <map>
#include <memory>
#include <set>
#include <string>
#include <tuple>
#include <vector>

#include "weft/dist_autograd/passes/context_core.h"
#include "weft/tests/dist_autograd/passes/fake_graph.h"

namespace weft::dist_autograd_internal {

class BackwardWorld {
 public:
  struct Options {
    int workers = 2;
    uint64_t seed = 1;
    bool in_order = false;    // deliver and work strictly first come, first served
    unsigned duplicates = 0;  // percent of messages that arrive twice
    unsigned kills = 0;       // percent of runs in which a worker dies; the next lines likewise
    unsigned node_failures = 0;
    unsigned cancels = 0;
    unsigned deadlines = 0;
    unsigned holds = 0;   // percent of leaf runs that take a hold
    unsigned closes = 0;  // the context is closed while backward runs
  };

  explicit BackwardWorld(Options options);
  ~BackwardWorld();

  // Records the program under a new context of `creator`.
  ContextId record(Program program, int creator);
  // Starts a pass from the program's roots. Its result appears in `ended`.
  absl::StatusOr<PassId> start(const ContextId& context, ContextCore::StartOptions options);
  // Runs until only timers are left.
  void run();
  // Starts the passes of each context one after the other, while faults strike. Then closes all
  // contexts.
  void run_passes(const std::map<ContextId, std::vector<ContextCore::StartOptions>>& passes);

  void kill(int worker);
  void close_all();
  void check_gradients(const ContextId& context);

  ContextCore& core(int worker) { return *workers_[worker].core; }
  const std::string& broken() const { return broken_; }
  const std::map<PassId, PassFailure>& ended() const { return ended_; }
  bool committed(const PassId& pass) const { return committed_.contains(pass); }
  std::map<int, uint64_t> readable(int worker, const ContextId& context) const;
  // Counts of messages of all passes so far, by kind.
  const std::map<std::string, int>& sent() const { return sent_; }
  int events() const { return events_; }

  // For tests that place events by hand: the messages in flight, in the order in which they were
  // sent.
  struct Envelope {
    int from = 0, to = 0;
    AutogradMessage message;
  };
  std::vector<Envelope>& network() { return network_; }
  void deliver(size_t index);
  bool work(int worker);  // runs one action of some local graph on this worker
  void fire_deadline(int worker, const PassId& pass);
  void act(int worker, AutogradActions& actions);

 private:
  struct LocalRun {
    std::unique_ptr<FakeGraph> graph;
    std::deque<LocalWork> strand;
    bool stopped = false;
    int holds = 0;
  };
  struct Worker {
    bool alive = true;
    std::unique_ptr<ContextCore> core;
    std::map<PassId, LocalRun> runs;
    std::map<ContextId, std::map<int, uint64_t>> readable;
    std::set<PassId> timers;
    std::deque<int> deaths;  // deaths of which this worker has not heard yet
  };
  struct Context {
    Program program;
    std::map<int, uint64_t> truth;
    int creator = 0;
    bool closed = false;
  };

  void engage(int worker, const backward::EngageLocal& start);
  // Null, after a violation: the pass is not engaged at the worker.
  LocalRun* engaged(Worker& worker, const PassId& pass);
  void run_local(int worker, const PassId& pass, LocalWork& work);
  void post(int from, int to, AutogradMessage message);
  bool event();
  void strike();
  void tell_death(int worker);
  void release_hold(int worker, const PassId& pass);
  void on_decision(int worker, const PassId& pass);
  void check_quiet(const PassId& pass, const char* when);
  void call_from(int worker, const ContextId& context);
  void violation(std::string what);

  const Options options_;
  Random random_;
  std::vector<Worker> workers_;
  std::map<ContextId, Context> contexts_;
  std::vector<Envelope> network_;
  std::map<PassId, PassFailure> ended_;
  std::set<PassId> committed_;
  std::set<PassId> sealed_;
  std::set<PassId> running_;
  std::set<std::tuple<PassId, int, int, uint64_t>> delivered_;  // counted messages, by number
  std::set<int> strikes_;  // event numbers at which a planned fault strikes
  std::map<std::string, int> sent_;
  std::string broken_;
  int events_ = 0;
  int fail_node_on_ = -1;
  uint64_t next_id_base_ = 0;
};

}  // namespace weft::dist_autograd_internal
