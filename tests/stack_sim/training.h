// Steps of an optimizer over parameters on several simulated workers, as a trainer's program takes
// them: forward, backward, step, in rounds; and a book of what became of them.
//
// Every step adds 1 to each owner's parameter, so the parameter says how many were applied there.
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

// Owners write when their parameters end, trainers when a step is over.
class StepBook {
 public:
  StepBook();
  ~StepBook();  // one at a time in a process
  static StepBook* open();

  struct Entry {
    WorkerId trainer;
    std::vector<WorkerId> owners;
    uint64_t begun = 0, applied = 0, not_applied = 0, unsure = 0;  // steps
    std::set<WorkerId> made;          // where there are parameters, or were
    std::map<WorkerId, double> left;  // what they were, where they have ended
  };
  Entry& operator[](uint64_t training) { return entries_[training]; }

  // Once nothing is on its way any more. Owners that outlive all their steps have applied the same
  // ones, and those that the trainer was told of.
  std::vector<std::string> violations(const std::function<bool(WorkerId)>& incarnations) const;

 private:
  std::map<uint64_t, Entry> entries_;
};

class Weights;

class Training : public std::enable_shared_from_this<Training> {
 public:
  struct Options {
    uint64_t number = 0;              // in the book
    std::vector<std::string> owners;  // by name
    uint32_t rounds = 1;
    Nanoseconds step_timeout{};
    std::function<void(const std::string& what)> note;  // what is done, and what comes of it
  };
  Training(Incarnation& incarnation, StepBook& book, Options options);

  // In the scope of its worker. Throws RpcError: a worker cannot be asked.
  void begin();
  // Its life has ended: no more rounds.
  bool ended() const { return !incarnation_.alive; }

 private:
  // Runs `next` as a task of the worker once all futures are complete.
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
