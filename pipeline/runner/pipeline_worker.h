// Runs the part of a pipeline that lies on one worker: its stages, its row of the schedule, and the
// messages to and from the other workers.
//
// A training step: the controller calls run() on each worker. Each does its row on a thread of its
// own. It sends what other workers need as soon as it is computed, in one message per micro-batch,
// boundary and direction. run() returns a token, with which a backward pass of the context brings
// the gradients to the leaves (step_gradients.h). A step may also evaluate: then only the forwards
// of the row run, without a graph, and run() returns the outputs of the last stage.
//
// Thread safety: all methods may be called from any thread; the steps run one after the other.
// Lifetime: lives as long as the controller's RRef, or a step that runs. Calls find it by the
// pipeline's id, so workers hold no references to each other.
// Errors: run() returns the first failure of this worker's part, such as "1F3: ...". Then this
// worker keeps nothing of the step. Cancelled: another worker failed, or the controller has given
// up.
#pragma once

#include <cstdint>
#include <map>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include <ATen/core/Tensor.h>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "weft/async/future.h"
#include "weft/async/serial_thread.h"
#include "weft/base/ids.h"
#include "weft/base/mutex.h"
#include "weft/pipeline/runner/pipeline_messages.h"
#include "weft/pipeline/runner/run_core.h"
#include "weft/pipeline/runner/step_state.h"
#include "weft/pipeline/stage/stage_loss.h"
#include "weft/rpc/class.h"
#include "weft/rpc/session/call_scope.h"

namespace weft::pipeline_internal {

class PipelineWorker : public std::enable_shared_from_this<PipelineWorker> {
 public:
  // Throws RpcError.
  explicit PipelineWorker(PipelinePart part);
  ~PipelineWorker();
  PipelineWorker(const PipelineWorker&) = delete;
  PipelineWorker& operator=(const PipelineWorker&) = delete;

  // Returns when the object exists, as every call does.
  void open() const {}
  Future<StepDone> run(CallContext& call, StepStart start);
  // Ends a step that another worker cannot finish.
  void abort(uint64_t step);
  absl::Status arrived(PipelineMessage message);

 private:
  absl::Status check(const StepStart& start) const;
  absl::StatusOr<StepDone> compute(StepStart start, const std::shared_ptr<StepState>& state,
                                   TimePoint deadline);

  const std::shared_ptr<const RunPlan>& row_of(bool evaluates) const {
    return evaluates ? evaluation_row_ : row_;
  }
  // Cancelled: the step has ended here, or is too many steps behind the last one that has.
  absl::StatusOr<std::shared_ptr<StepState>> state_of(uint64_t step, bool evaluates)
      ABSL_LOCKS_EXCLUDED(mutex_);
  // Ends all steps up to this one. Those that have not finished fail.
  void end(uint64_t step, const absl::Status& why) ABSL_LOCKS_EXCLUDED(mutex_);

  const PipelinePart part_;
  // Shared by the steps.
  std::shared_ptr<const RunPlan> row_, evaluation_row_;
  LossFunction loss_ = nullptr;
  WorkerId here_;
  Mutex mutex_;
  uint64_t ended_ ABSL_GUARDED_BY(mutex_) = 0;  // the last step that has ended here
  std::map<uint64_t, std::shared_ptr<StepState>> steps_ ABSL_GUARDED_BY(mutex_);
  SerialThread thread_;  // last, so that it stops first
};

// Makes the object, and lets bring_message() find it.
std::shared_ptr<PipelineWorker> open_pipeline(PipelinePart part);
// NotFound: this worker has no such pipeline, or no longer.
void bring_message(PipelineMessage message);

WEFT_DECLARE_CLASS(PipelineWorker, &PipelineWorker::open, &PipelineWorker::run,
                   &PipelineWorker::abort);

}  // namespace weft::pipeline_internal
