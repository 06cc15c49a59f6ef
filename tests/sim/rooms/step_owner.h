// An owner of parameters in the simulator. It does what ShardStepper, OptimizerShard and
// Checkpointer do around the library's StepOwnerCore.
//
// Thread safety: none.
// Protocol: docs/durable_steps.md.
#pragma once

#include <map>
#include <set>
#include <string>
#include <vector>

#include "absl/status/statusor.h"
#include "weft/dist_optim/steps/step_owner_core.h"
#include "weft/tests/sim/rooms/step_book.h"
#include "weft/tests/sim/rooms/step_messages.h"

namespace weft::sim {

class Steps;
class Worker;
class World;

class StepOwner {
 public:
  StepOwner(Worker& worker, Steps& room);

  // A call brings this request. It is answered once, now or later.
  void serve(uint64_t incoming, WorkerId from, const StepRequest& request);
  void on_peer_dead(WorkerId dead);
  // True if this owner came back and no caller has resumed this step sequence yet.
  bool restored(const std::string& sequence) const { return restored_.contains(sequence); }
  std::string leftovers() const;

 private:
  struct Waiter {
    uint64_t incoming = 0;
    std::string sequence;
    StepReply reply;
  };

  void restore(const StepCheckpoint& from, bool restarted);
  absl::StatusOr<double> prepare(const StepRequest& request);
  absl::Status commit(const StepRequest& request, double clip);
  absl::Status go_back(const StepRequest& request);
  void answer_once_durable(uint64_t incoming, const StepRequest& request, StepReply reply);
  dist_optim_internal::StepDurable durable(const std::string& sequence) const;
  void write_next();
  void written();

  void caller_died(const OptimizerId& optimizer);
  void carry_out(dist_optim_internal::OwnerActions actions);
  void ask(const dist_optim_internal::step::Ask& question);
  void answered(const dist_optim_internal::step::Ask& question, const absl::Status& failure,
                const dist_optim_internal::StepDecision& decision);

  Worker& worker_;
  World& world_;
  Steps& room_;
  dist_optim_internal::StepOwnerCore core_;
  std::map<OptimizerId, std::vector<WorkerId>> others_;  // by optimizer, once they have met
  std::set<std::string> restored_;
  // The copy that is written now. for_copy_ wait for the next copy, for_disk_ until this one is
  // written.
  bool writing_ = false;
  uint64_t copies_ = 0;
  StepCheckpoint copy_;
  std::vector<Waiter> for_copy_, for_disk_;
};

}  // namespace weft::sim
