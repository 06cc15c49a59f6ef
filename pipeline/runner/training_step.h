// Does a worker's row of a schedule: forwards, backwards, and the sums of the gradients.
//
// Thread safety: none; one thread at a time. The thread's scope has the step's context.
// Errors: the message begins with the action, such as "1F3: ".
#pragma once

#include <cstddef>
#include <map>
#include <memory>
#include <set>
#include <utility>
#include <vector>

#include <ATen/core/Tensor.h>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "weft/pipeline/runner/pipeline_messages.h"
#include "weft/pipeline/runner/run_core.h"
#include "weft/pipeline/runner/step_exchange.h"
#include "weft/pipeline/stage/stage_loss.h"
#include "weft/pipeline/stage/stage_run.h"

namespace weft::pipeline_internal {

class TrainingStep {
 public:
  TrainingStep(StepExchange& exchange, const RunPlan& row, LossFunction loss);

  // Returns when the row is done.
  absl::StatusOr<StepDone> run();

 private:
  StageRun::Forward forward_of(int stage);
  absl::Status perform(const RunPlan::Action& action);
  absl::Status forward(const RunPlan::Action& action, StageRun& run);
  absl::Status note_loss(const StageAction& action, const StageTensors& outputs);
  absl::Status backward(const RunPlan::Action& action, StageRun& run);

  StepExchange& exchange_;
  const LossFunction loss_;
  // The parameters that the graphs in `runs_` use. A context may end while an action runs.
  std::vector<std::shared_ptr<void>> held_;
  size_t running_ = 0;                        // micro-batch of the action that runs
  std::set<std::pair<int, int>> recomputed_;  // stage, micro-batch
  std::map<int, StageRun> runs_;              // by stage
  std::map<int, size_t> output_counts_;       // by stage
  std::map<int, at::Tensor> loss_values_;     // by micro-batch
};

}  // namespace weft::pipeline_internal
