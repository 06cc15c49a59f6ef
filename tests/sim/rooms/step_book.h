// The book of optimizers' steps: what the parameters of each owner hold, what callers were told,
// and what survives on the owners' disks.
//
// Parameters are the numbers of the steps that they hold, by line: an optimizer's steps of one line
// have numbers that grow.
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

// A checkpoint: what one holds of one moment.
struct StepCheckpoint {
  Parameters parameters;
  std::map<std::string, uint64_t> lines;
};

class StepBook {
 public:
  explicit StepBook(World& world) : world_(world) {}

  void apply(WorkerId owner, const std::string& line, const dist_optim_internal::StepId& step,
             double clip);
  // `restarted`: else the program goes back, with all lines that the owner has.
  void restore(WorkerId owner, const StepCheckpoint& from, bool restarted);
  // The caller of `line` was told this of a step of these owners.
  void tell(WorkerId caller, const std::string& line, const std::vector<WorkerId>& owners,
            const dist_optim_internal::StepId& step, const StepResult& result);
  // All owners of a line have gone back to this step.
  void resume(const std::string& line, uint64_t number);
  const Parameters& parameters(WorkerId owner) { return parameters_[owner]; }

  // ---- the disks of places; the newest two checkpoints are kept
  std::vector<StepCheckpoint>& disk(uint32_t place) { return disks_[place]; }
  void written(uint32_t place, StepCheckpoint checkpoint);
  // Owners that take steps of a line hold the same of it.
  void check_same(const std::string& line, const std::vector<WorkerId>& owners);

 private:
  struct Line {
    std::map<uint64_t, double> clips;                    // of the steps since the last resume
    std::set<std::pair<OptimizerId, uint64_t>> refused;  // told as not applied
    uint64_t durable = 0;
  };
  void give_up(WorkerId owner, const Parameters& kept);
  bool holds(WorkerId owner, const std::string& line, uint64_t number);

  World& world_;
  std::map<WorkerId, Parameters> parameters_;
  std::map<std::string, Line> lines_;
  std::map<uint32_t, std::vector<StepCheckpoint>> disks_;
  std::set<std::tuple<WorkerId, std::string, uint64_t>> given_up_;
};

}  // namespace weft::sim
