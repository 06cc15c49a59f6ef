// Runs the part of a pipeline that lies on one worker: its stages, its row of the schedule, and the
// messages to and from the other workers.
//
// A step: the controller calls run() on each worker. Each does its row on a thread of its own. It
// sends what other workers need as soon as it is computed, in one message per micro-batch, boundary
// and direction. run() returns a token, with which a backward pass of the context brings the
// gradients to the leaves (step_gradients.h).
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
#include "weft/dist_optim/module_host.h"
#include "weft/pipeline/runner/run_core.h"
#include "weft/pipeline/runner/step_state.h"
#include "weft/pipeline/runner/wiring.h"
#include "weft/rpc/class.h"
#include "weft/rpc/session/call_scope.h"
#include "weft/rref/rref.h"

namespace weft::pipeline_internal {

// Identifies a pipeline in the group: the WorkerId of its controller as bits, and a number there.
using PipelineId = std::pair<uint64_t, uint64_t>;

// Tells a worker its part, once.
struct PipelinePlan {
  PipelineId id;
  std::string schedule;           // as CSV
  Wiring wiring;                  // of all stages
  std::vector<uint64_t> workers;  // of each row: the WorkerId as bits
  int row = 0;                    // of this worker
  std::map<int, RRef<dist_optim_internal::ModuleHost>> modules;  // of its stages
  std::string loss;                                              // the wire name of the loss
};
inline auto weft_fields(PipelinePlan& p) {
  return std::tie(p.id, p.schedule, p.wiring, p.workers, p.row, p.modules, p.loss);
}

// Starts a step. A worker that has no stage that takes inputs or targets gets
// none.
struct StepStart {
  uint64_t number = 0;                          // ascending
  uint64_t seed = 0;                            // of the step's random numbers
  std::vector<std::vector<at::Tensor>> inputs;  // by micro-batch
  std::vector<at::Tensor> targets;              // by micro-batch
  std::vector<double> weights;                  // of the losses of the micro-batches
};
inline auto weft_fields(StepStart& s) {
  return std::tie(s.number, s.seed, s.inputs, s.targets, s.weights);
}

// An action that has run.
struct ExecutedAction {
  uint32_t place = 0;  // in the row of the schedule
  double begin = 0;    // seconds since the worker began the step
  double end = 0;
};
inline auto weft_fields(ExecutedAction& e) { return std::tie(e.place, e.begin, e.end); }

struct StepDone {
  at::Tensor token;
  std::vector<double> losses;            // by micro-batch; empty where the last stage is elsewhere
  std::vector<ExecutedAction> executed;  // in the order in which they ran
};
inline auto weft_fields(StepDone& d) { return std::tie(d.token, d.losses, d.executed); }

// A StageMessage and its tensors, on the wire.
struct PipelineMessage {
  PipelineId pipeline;
  uint64_t step = 0;
  int from_stage = 0;
  char work = 'F';
  int micro_batch = 0;
  int to_stage = 0;
  std::vector<at::Tensor> values;
  std::vector<uint8_t> requires_grad;
};
inline auto weft_fields(PipelineMessage& m) {
  return std::tie(m.pipeline, m.step, m.from_stage, m.work, m.micro_batch, m.to_stage, m.values,
                  m.requires_grad);
}

// A function of one output of the last stage and a target. It returns a scalar: the mean over the
// micro-batch.
using LossFunction = at::Tensor (*)(const at::Tensor& output, const at::Tensor& target);

class PipelineWorker : public std::enable_shared_from_this<PipelineWorker> {
 public:
  // Throws RpcError.
  explicit PipelineWorker(PipelinePlan plan);
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
  class Step;

  absl::Status check(const StepStart& start) const;
  absl::StatusOr<StepDone> compute(StepStart start, const std::shared_ptr<StepState>& state,
                                   TimePoint deadline);

  // FailedPrecondition: the step has ended here, or is more than `most_ahead` steps behind the last
  // one that has.
  absl::StatusOr<std::shared_ptr<StepState>> state_of(uint64_t step, uint64_t most_ahead)
      ABSL_LOCKS_EXCLUDED(mutex_);
  void end(uint64_t step) ABSL_LOCKS_EXCLUDED(mutex_);

  const PipelinePlan plan_;
  std::shared_ptr<const RunPlan> row_;  // shared by the steps
  LossFunction loss_ = nullptr;
  WorkerId here_;
  Mutex mutex_;
  uint64_t ended_ ABSL_GUARDED_BY(mutex_) = 0;  // the last step that has ended here
  std::map<uint64_t, std::shared_ptr<StepState>> steps_ ABSL_GUARDED_BY(mutex_);
  SerialThread thread_;  // last, so that it stops first
};

// Makes the object, and lets bring_message() find it.
std::shared_ptr<PipelineWorker> open_pipeline(PipelinePlan plan);
// NotFound: this worker has no such pipeline, or no longer.
void bring_message(PipelineMessage message);

WEFT_DECLARE_CLASS(PipelineWorker, &PipelineWorker::open, &PipelineWorker::run,
                   &PipelineWorker::abort);

}  // namespace weft::pipeline_internal
