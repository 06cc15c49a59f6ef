// Gives the actions of one step what they take, and brings what they make to the stages that take
// it.
//
// Thread safety: none; one thread at a time.
// Lifetime: a step's. The plan and the row must outlive it.
// Errors: those of StepState and of wiring.h.
#pragma once

#include <memory>
#include <vector>

#include <ATen/core/Tensor.h>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "weft/base/clock.h"
#include "weft/pipeline/runner/pipeline_messages.h"
#include "weft/pipeline/runner/run_core.h"
#include "weft/pipeline/runner/step_state.h"
#include "weft/rpc/runtime.h"

namespace weft::pipeline_internal {

class StepExchange {
 public:
  struct Parts {
    const PipelinePart& part;
    const RunPlan& row;
    StepStart& start;                  // its inputs are moved out as they are used
    std::shared_ptr<StepState> state;  // shared with the calls that bring messages
    TimePoint deadline;
  };
  // Its calls are made by the worker of this thread's scope, outside of any context: no graph leads
  // from one worker to another.
  explicit StepExchange(Parts parts);

  const PipelinePart& part() const { return parts_.part; }
  const StepStart& start() const { return parts_.start; }
  int micro_batches() const { return parts_.row.micro_batches; }
  int last_stage() const { return static_cast<int>(parts_.part.wiring.size()) - 1; }

  // Waits for the next action that can run. Null: all are done, and what they made was taken. The
  // time until the next call counts as that of the action.
  absl::StatusOr<const RunPlan::Action*> next();

  // The inputs of a forward: from the pipeline's inputs, or from other stages.
  absl::StatusOr<StageTensors> inputs_of(const RunPlan::Action& action);
  absl::Status send_outputs(const RunPlan::Action& action, const StageTensors& outputs);
  // The gradients of the `outputs` outputs of a stage, summed with those of later stages first, as
  // one graph does.
  absl::StatusOr<std::vector<at::Tensor>> gradients_of(const RunPlan::Action& action,
                                                       size_t outputs);
  absl::Status send_gradients(const RunPlan::Action& action,
                              const std::vector<at::Tensor>& gradients);

  std::vector<ExecutedAction> take_executed() { return std::move(executed_); }

 private:
  absl::Status send(const StageMessage& message, StageTensors tensors);
  double seconds() const;  // since the step began
  Timeout remaining() const;

  const Parts parts_;
  const std::shared_ptr<RpcRuntime> runtime_;
  const TimePoint begun_;
  const bool gives_inputs_;  // no second stage of the row takes the inputs of the pipeline
  bool running_ = false;     // the last of `executed_` has no end yet
  std::vector<ExecutedAction> executed_;
};

}  // namespace weft::pipeline_internal
