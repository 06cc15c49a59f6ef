// Steps of an optimizer over parameters on several simulated workers, like those of a trainer's
// program. Each round runs forward, backward and step. A book records the results.
//
// Every step adds 1 to each owner's parameter, so its value is the number of applied steps.
//
// Thread safety: none.
#pragma once

#include <cstdint>
#include <functional>
#include <map>
#include <memory>
#include <set>
#include <string>
#include <vector>

#include "weft/base/ids.h"
#include "weft/dist_optim/internal/step_caller.h"
#include "weft/tests/stack_sim/stack_world.h"

namespace weft::sim {

// Owners add entries when their parameters are destroyed, trainers when a step is over.
class StepBook {
 public:
  StepBook();
  ~StepBook();  // one at a time in a process
  static StepBook* open();

  struct Entry {
    WorkerId trainer;
    std::vector<WorkerId> owners;
    uint64_t begun = 0, applied = 0, not_applied = 0, unsure = 0;  // steps
    std::set<WorkerId> made;          // owners that have parameters, or had them
    std::map<WorkerId, double> left;  // the values of destroyed parameters
  };
  Entry& operator[](uint64_t training) { return entries_[training]; }

  // Call it when nothing is in flight. Checks that owners that outlive all their steps have applied
  // the same ones, and those that the trainer was told of.
  std::vector<std::string> violations(const std::function<bool(WorkerId)>& incarnations) const;

 private:
  std::map<uint64_t, Entry> entries_;
};

class Weights;

class Training : public std::enable_shared_from_this<Training> {
 public:
  struct Options {
    uint64_t number = 0;              // index in the book
    std::vector<std::string> owners;  // by name
    uint32_t rounds = 1;
    Nanoseconds step_timeout{};
    std::function<void(const std::string& what)> note;  // gets what is done and what comes of it
  };
  Training(Incarnation& incarnation, StepBook& book, Options options);

  // Call it in the scope of its worker. Throws RpcError if a worker cannot be asked.
  void begin();
  // True if its incarnation has stopped: no more rounds.
  bool ended() const { return !incarnation_.alive; }

 private:
  // Runs `next` as a task of the worker when all futures are complete.
  template <class T>
  void when(const std::vector<Future<T>>& futures, void (Training::*next)());
  void later(void (Training::*next)());
  void introduced();
  void round();
  void forwarded();
  void passed();
  void stepped();
  void end_round();

  Incarnation& incarnation_;
  StepBook& book_;
  const Options options_;
  std::vector<RRef<Weights>> weights_;
  std::shared_ptr<dist_optim_internal::StepCaller> steps_;  // shared with the answers of a step
  uint32_t rounds_ = 0;
  ContextId context_;
  std::vector<Future<void>> met_;
  std::vector<Future<at::Tensor>> parts_;
  std::vector<Future<void>> pass_;
  std::vector<Future<StepResult>> step_;
};

}  // namespace weft::sim
