// The book of optimizers' steps: what the parameters of each owner hold, what callers were told,
// and what is on the owners' disks.
//
// Parameters are represented by the numbers of the steps that they hold, by step sequence. The
// numbers within one sequence grow.
//
// Thread safety: none.
#pragma once

#include <map>
#include <set>
#include <string>
#include <tuple>
#include <utility>
#include <vector>

#include "weft/base/ids.h"
#include "weft/dist_optim/steps/step_core.h"
#include "weft/dist_optim/steps/step_result.h"
#include "weft/tests/sim/world/schedule.h"

namespace weft::sim {

class World;

using Parameters = std::map<std::string, std::vector<uint64_t>>;

// A checkpoint: what one owner holds at one moment.
struct StepCheckpoint {
  Parameters parameters;
  std::map<std::string, uint64_t> sequences;
};

class StepBook {
 public:
  explicit StepBook(World& world) : world_(world) {}

  void apply(WorkerId owner, const std::string& sequence, const dist_optim_internal::StepId& step,
             double clip);
  // `restarted`: the owner restarted. Otherwise the program goes back, with all step sequences of
  // the owner.
  void restore(WorkerId owner, const StepCheckpoint& from, bool restarted);
  // The caller of `sequence` got this result for a step over these owners.
  void tell(WorkerId caller, const std::string& sequence, const std::vector<WorkerId>& owners,
            const dist_optim_internal::StepId& step, const StepResult& result);
  // All owners of a step sequence have gone back to this step.
  void resume(const std::string& sequence, uint64_t number);
  const Parameters& parameters(WorkerId owner) { return parameters_[owner]; }

  // ---- the disks by slot; the newest two checkpoints are kept
  std::vector<StepCheckpoint>& disk(uint32_t place) { return disks_[place]; }
  void written(uint32_t place, StepCheckpoint checkpoint);
  // Checks that the owners of a step sequence hold the same steps of it.
  void check_same(const std::string& sequence, const std::vector<WorkerId>& owners);

 private:
  struct Sequence {
    std::map<uint64_t, double> clips;                    // of the steps since the last resume
    std::set<std::pair<OptimizerId, uint64_t>> refused;  // told as not applied
    uint64_t durable = 0;
  };
  void give_up(WorkerId owner, const Parameters& kept);
  bool holds(WorkerId owner, const std::string& sequence, uint64_t number);

  World& world_;
  std::map<WorkerId, Parameters> parameters_;
  std::map<std::string, Sequence> sequences_;
  std::map<uint32_t, std::vector<StepCheckpoint>> disks_;
  std::set<std::tuple<WorkerId, std::string, uint64_t>> given_up_;
};

}  // namespace weft::sim
