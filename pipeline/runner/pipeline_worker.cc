#include "weft/pipeline/runner/pipeline_worker.h"

#include <algorithm>
#include <utility>

#include <ATen/Parallel.h>

#include "absl/strings/str_cat.h"
#include "weft/async/value_or_throw.h"
#include "weft/base/rpc_error.h"
#include "weft/base/status.h"
#include "weft/dist_autograd/graph/engine_scope.h"
#include "weft/pipeline/runner/evaluation_step.h"
#include "weft/pipeline/runner/step_exchange.h"
#include "weft/pipeline/runner/training_step.h"
#include "weft/pipeline/schedules/price.h"

namespace weft::pipeline_internal {
namespace {

// Messages come before the step that takes them has begun here, for up to so many steps.
constexpr uint64_t kStepsAhead = 2;

using Key = std::pair<WorkerId, PipelineId>;  // of the worker, and of the pipeline

// The pipelines of all workers of this process, for the calls that bring messages.
class OpenPipelines {
 public:
  static OpenPipelines& instance() {
    static auto* const instance = new OpenPipelines;  // calls may come until the process ends
    return *instance;
  }
  void add(const Key& key, const std::weak_ptr<PipelineWorker>& worker)
      ABSL_LOCKS_EXCLUDED(mutex_) {
    MutexLock lock(mutex_);
    workers_[key] = worker;
  }
  void remove(const Key& key) ABSL_LOCKS_EXCLUDED(mutex_) {
    MutexLock lock(mutex_);
    workers_.erase(key);
  }
  std::shared_ptr<PipelineWorker> find(const Key& key) ABSL_LOCKS_EXCLUDED(mutex_) {
    MutexLock lock(mutex_);
    const auto found = workers_.find(key);
    return found == workers_.end() ? nullptr : found->second.lock();
  }

 private:
  Mutex mutex_;
  std::map<Key, std::weak_ptr<PipelineWorker>> workers_ ABSL_GUARDED_BY(mutex_);
};

absl::StatusOr<StageWork> work_of(char letter) {
  for (const StageWork work :
       {StageWork::kForward, StageWork::kInputGradients, StageWork::kBackward}) {
    if (letter == static_cast<char>(work)) return work;
  }
  return absl::InvalidArgumentError("a message of a pipeline is of an F, I or B");
}

}  // namespace

PipelineWorker::PipelineWorker(PipelinePart part)
    : part_(std::move(part)), thread_(SerialThread::AtEnd::kDrop, "a pipeline") {
  const PipelineSchedule schedule = value_or_throw(PipelineSchedule::from_csv(part_.schedule));
  const StageGraph graph = value_or_throw(graph_of(part_.wiring));
  row_ = value_or_throw(RunPlan::make(schedule, graph, part_.row));
  evaluation_row_ = value_or_throw(RunPlan::make(schedule.forwards(), graph, part_.row));
  bool fits = part_.workers.size() == schedule.workers.size();
  for (const RunPlan::Action& each : row_->actions) {
    fits = fits && part_.modules.contains(each.action.stage);
  }
  if (!fits) {
    throw RpcError(absl::InvalidArgumentError("the parts of a pipeline's plan do not fit"));
  }
  here_ = value_or_throw(rpc_internal::current_runtime())->id();
  loss_ = loss_named(part_.loss);
}

PipelineWorker::~PipelineWorker() { OpenPipelines::instance().remove({here_, part_.id}); }

absl::StatusOr<std::shared_ptr<StepState>> PipelineWorker::state_of(uint64_t step, bool evaluates) {
  MutexLock lock(mutex_);
  if (step <= ended_ || step - ended_ > kStepsAhead) {
    return absl::CancelledError(
        absl::StrCat("step ", step, " is over or too far ahead; the last one was ", ended_));
  }
  std::shared_ptr<StepState>& state = steps_[step];
  if (state == nullptr) state = std::make_shared<StepState>(row_of(evaluates));
  return state;
}

void PipelineWorker::end(uint64_t step, const absl::Status& why) {
  std::vector<std::shared_ptr<StepState>> ended;
  {
    MutexLock lock(mutex_);
    ended_ = std::max(ended_, step);
    const auto first_open = steps_.upper_bound(ended_);
    for (auto each = steps_.begin(); each != first_open; ++each) ended.push_back(each->second);
    steps_.erase(steps_.begin(), first_open);
  }
  for (const auto& state : ended) state->fail(why);
}

Future<StepDone> PipelineWorker::run(CallContext& call, StepStart start) {
  if (start.number == 0) throw RpcError(absl::InvalidArgumentError("steps count from 1"));
  // The calls of earlier steps may not have come here at all.
  end(start.number - 1, absl::CancelledError("the next step of the pipeline has begun"));
  std::shared_ptr<StepState> state = value_or_throw(state_of(start.number, start.evaluates));
  if (absl::Status fits = check(start); !fits.ok()) {
    end(start.number, fits);
    throw RpcError(fits);
  }
  Promise<StepDone> promise;
  Future<StepDone> done = promise.future();
  const uint64_t hook = call.on_cancel([state] {
    state->fail(absl::CancelledError("the controller of the pipeline waits no longer"));
  });
  thread_.run(bind_scope([self = shared_from_this(), call = call.shared_from_this(), hook,
                          start = std::move(start), state = std::move(state),
                          promise = std::move(promise)]() mutable {
    const uint64_t number = start.number;
    absl::StatusOr<StepDone> result = self->compute(std::move(start), state, call->deadline());
    call->forget(hook);
    self->end(number, absl::CancelledError("the step is over"));
    promise.set(std::move(result));
  }));
  return done;
}

absl::StatusOr<StepDone> PipelineWorker::compute(StepStart start,
                                                 const std::shared_ptr<StepState>& state,
                                                 TimePoint deadline) {
  absl::StatusOr<StepDone> done = absl::UnknownError("");
  try {
    at::init_num_threads();
    const RunPlan& row = *row_of(start.evaluates);
    StepExchange exchange({part_, row, start, state, deadline});
    done = start.evaluates ? evaluate(exchange) : TrainingStep(exchange, row, loss_).run();
    if (done.ok()) done->executed = exchange.take_executed();
  } catch (const RpcError& error) {  // a stage's module could not be made
    done = error.status();
  } catch (...) {
    done = absl::UnknownError(dist_autograd_internal::text_of_current_exception());
  }
  if (!done.ok()) state->fail(done.status());
  return done;
}

// Whether the controller gives the stages of this worker what they take.
absl::Status PipelineWorker::check(const StepStart& start) const {
  const auto micro_batches = static_cast<size_t>(row_->micro_batches);
  for (const RunPlan::Action& each : row_->actions) {
    const auto stage = static_cast<size_t>(each.action.stage);
    const bool first = part_.wiring[stage].empty();
    const bool last = stage + 1 == part_.wiring.size();
    if ((first && start.inputs.size() != micro_batches) ||
        (last && !start.evaluates &&
         (start.targets.size() != micro_batches || start.weights.size() != micro_batches))) {
      return absl::InvalidArgumentError(absl::StrCat("stage ", stage,
                                                     " needs inputs or targets of ", micro_batches,
                                                     " micro-batches, and got another number"));
    }
  }
  return absl::OkStatus();
}

void PipelineWorker::abort(uint64_t step) {
  end(step, absl::CancelledError("another worker of the pipeline failed"));
}

absl::Status PipelineWorker::arrived(PipelineMessage message) {
  if (message.values.size() != message.requires_grad.size()) {
    return absl::InvalidArgumentError("a message of a pipeline has too few or too many flags");
  }
  WEFT_ASSIGN_OR_RETURN(const StageWork work, work_of(message.work));
  WEFT_ASSIGN_OR_RETURN(const std::shared_ptr<StepState> state,
                        state_of(message.step, message.evaluates));
  StageTensors tensors;
  tensors.values = std::move(message.values);
  tensors.requires_grad.assign(message.requires_grad.begin(), message.requires_grad.end());
  return state->arrived({{message.from_stage, work, message.micro_batch}, message.to_stage},
                        std::move(tensors));
}

std::shared_ptr<PipelineWorker> open_pipeline(PipelinePart part) {
  const PipelineId id = part.id;
  auto worker = std::make_shared<PipelineWorker>(std::move(part));
  OpenPipelines::instance().add({value_or_throw(rpc_internal::current_runtime())->id(), id},
                                worker);
  return worker;
}

void bring_message(PipelineMessage message) {
  const WorkerId here = value_or_throw(rpc_internal::current_runtime())->id();
  const auto worker = OpenPipelines::instance().find({here, message.pipeline});
  if (worker == nullptr) throw RpcError(absl::NotFoundError("this worker has no such pipeline"));
  if (absl::Status taken = worker->arrived(std::move(message)); !taken.ok()) throw RpcError(taken);
}

WEFT_DEFINE_CLASS(PipelineWorker);
WEFT_REGISTER_FUNCTION(open_pipeline);
WEFT_REGISTER_FUNCTION(bring_message, run_inline);

}  // namespace weft::pipeline_internal
