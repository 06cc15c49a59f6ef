#include "weft/pipeline/internal/pipeline_controller.h"

#include <algorithm>
#include <atomic>
#include <chrono>
#include <utility>

#include <ATen/core/grad_mode.h>
#include <ATen/ops/cat.h>
#include <ATen/ops/stack.h>

#include "absl/strings/str_cat.h"
#include "weft/async/value_or_throw.h"
#include "weft/base/mutex.h"
#include "weft/base/rpc_error.h"
#include "weft/pipeline/internal/micro_batches.h"
#include "weft/pipeline/schedules/price.h"

namespace weft::pipeline_internal {
namespace {

template <class... Part>
[[noreturn]] void refuse(const Part&... part) {
  throw RpcError(absl::InvalidArgumentError(absl::StrCat(part...)));
}

PipelineId next_id(const RpcRuntime& runtime) {
  static std::atomic<uint64_t> last{0};
  return {runtime.id().bits(), ++last};
}

// What is left of a timeout. Not set, or without a limit: the same.
Timeout rest_of(Timeout timeout, TimePoint begun) {
  if (!timeout.is_set() || timeout.infinite()) return timeout;
  const Nanoseconds left = timeout.limit() - (std::chrono::steady_clock::now() - begun);
  return std::max(left, Nanoseconds(1));
}

}  // namespace

PipelineController::PipelineController(std::vector<PipelineStage> stages, PipelineOptions options)
    : stages_(std::move(stages)),
      options_(std::move(options)),
      schedule_(value_or_throw(options_.schedule)) {
  const std::shared_ptr<RpcRuntime> runtime = value_or_throw(rpc_internal::current_runtime());
  if (stages_.empty()) refuse("a pipeline has at least one stage");
  if (schedule_.stages() != static_cast<int>(stages_.size())) {
    refuse("the schedule has ", schedule_.stages(), " stages, and the pipeline ", stages_.size());
  }
  if (!schedule_.trains()) refuse("the schedule has no backward");
  PipelinePart part;
  part.id = next_id(*runtime);
  part.schedule = schedule_.to_csv();
  part.wiring = wiring();
  part.loss = name_of_loss(options_.loss);
  if (absl::Status fits = check_schedule(schedule_, value_or_throw(graph_of(part.wiring)));
      !fits.ok()) {
    throw RpcError(fits);
  }
  const std::vector<WorkerId> workers = workers_of_rows();
  for (const WorkerId worker : workers) part.workers.push_back(worker.bits());
  for (size_t row = 0; row < workers.size(); ++row) {
    part.row = static_cast<int>(row);
    part.modules.clear();
    for (const StageAction& action : schedule_.workers[row]) {
      part.modules.emplace(action.stage, stages_[static_cast<size_t>(action.stage)].host_);
    }
    workers_.push_back(remote(workers[row], open_pipeline, part));
  }
  // A worker must be there before the first message for it comes.
  for (const RRef<PipelineWorker>& worker : workers_) worker.rpc_sync(&PipelineWorker::open);
}

Wiring PipelineController::wiring() const {
  Wiring wiring;
  for (const PipelineStage& stage : stages_) {
    const int number = static_cast<int>(wiring.size());
    if (stage.wired_) {
      wiring.push_back(stage.inputs_);
    } else if (number == 0) {
      wiring.emplace_back();
    } else {
      wiring.push_back({{number - 1, StageOutput::kAll}});
    }
  }
  return wiring;
}

std::vector<WorkerId> PipelineController::workers_of_rows() const {
  std::vector<WorkerId> workers;
  for (const auto& row : schedule_.workers) {
    if (row.empty()) refuse("row ", workers.size() + 1, " of the schedule is empty");
    const PipelineStage& first = stages_[static_cast<size_t>(row.front().stage)];
    for (const StageAction& action : row) {
      const PipelineStage& stage = stages_[static_cast<size_t>(action.stage)];
      if (stage.host_.owner() == first.host_.owner()) continue;
      refuse("row ", workers.size() + 1, " of the schedule has stage ", row.front().stage, " on ",
             first.host_.owner_name(), " and stage ", action.stage, " on ",
             stage.host_.owner_name());
    }
    if (std::find(workers.begin(), workers.end(), first.host_.owner()) != workers.end()) {
      refuse("two rows of the schedule have stages on ", first.host_.owner_name());
    }
    workers.push_back(first.host_.owner());
  }
  return workers;
}

StepStart PipelineController::part_of(size_t row, const StepStart& whole) const {
  StepStart part;
  part.number = whole.number;
  part.evaluates = whole.evaluates;
  part.seed = whole.seed;
  for (const StageAction& action : schedule_.workers[row]) {
    const auto stage = static_cast<size_t>(action.stage);
    if (stage == 0 || (stages_[stage].wired_ && stages_[stage].inputs_.empty())) {
      part.inputs = whole.inputs;
    }
    if (stage + 1 == stages_.size()) {
      part.targets = whole.targets;
      part.weights = whole.weights;
    }
  }
  return part;
}

StepStart PipelineController::start_of(const std::vector<at::Tensor>& inputs, int64_t size) {
  if (inputs.empty()) refuse("a step needs at least one input");
  const int micro_batches = schedule_.micro_batches();
  StepStart whole;
  whole.inputs.resize(static_cast<size_t>(micro_batches));
  for (const at::Tensor& input : inputs) {
    const std::vector<at::Tensor> parts = divided(input, size, micro_batches, "inputs");
    for (size_t i = 0; i < parts.size(); ++i) whole.inputs[i].push_back(parts[i]);
  }
  whole.number = ++steps_;
  return whole;
}

std::vector<StepDone> PipelineController::run(const StepStart& whole) const {
  Runs runs;
  for (size_t row = 0; row < workers_.size(); ++row) {
    runs.push_back(workers_[row]
                       .with({.timeout = options_.timeout})
                       .rpc_async(&PipelineWorker::run, part_of(row, whole)));
  }
  return finish(whole.number, std::move(runs));
}

PipelineResult PipelineController::step(const dist_autograd::Context& context,
                                        const std::vector<at::Tensor>& inputs,
                                        const std::vector<at::Tensor>& targets) {
  if (dist_autograd::current_context() != context.id()) {
    throw RpcError(absl::FailedPreconditionError("the context is not that of this thread"));
  }
  if (targets.size() != 1) refuse("a step takes 1 target, not ", targets.size());
  const int64_t size = batch_size(targets.front());
  std::vector<at::Tensor> parts =
      divided(targets.front(), size, schedule_.micro_batches(), "targets");
  StepStart whole = start_of(inputs, size);
  whole.seed = StageRun::seed_of(options_.seed, 0, static_cast<int>(whole.number));
  whole.targets = std::move(parts);
  for (const at::Tensor& part : whole.targets) {
    whole.weights.push_back(static_cast<double>(part.size(0)) / static_cast<double>(size));
  }

  const TimePoint begun = std::chrono::steady_clock::now();
  PipelineResult result;
  std::vector<at::Tensor> tokens;
  for (const StepDone& each : run(whole)) {
    if (each.token.defined() && each.token.requires_grad()) tokens.push_back(each.token);
    if (!each.losses.empty()) result.losses = each.losses;
    const std::vector<StageAction>& row = schedule_.workers[result.executed.size()];
    std::vector<TimedAction>& spans = result.executed.emplace_back();
    for (const auto& [place, begin, end] : each.executed) {
      if (place < row.size()) spans.push_back({row[place], begin, end});
    }
  }
  for (size_t i = 0; i < result.losses.size(); ++i) {
    result.loss += whole.weights[i] * result.losses[i];
  }
  const at::AutoGradMode record(true);
  context.backward({at::stack(tokens).sum()}, {.timeout = rest_of(options_.timeout, begun)});
  return result;
}

std::vector<at::Tensor> PipelineController::forward(const std::vector<at::Tensor>& inputs) {
  if (inputs.empty()) refuse("a step needs at least one input");
  StepStart whole = start_of(inputs, batch_size(inputs.front()));
  whole.evaluates = true;
  CallScope scope = CallScope::current();
  scope.context = {};  // no graph is recorded
  const CallScopeGuard guard(std::move(scope));
  std::vector<std::vector<at::Tensor>> outputs;  // by output, then by micro-batch
  for (const StepDone& each : run(whole)) {
    for (const std::vector<at::Tensor>& micro_batch : each.outputs) {
      outputs.resize(std::max(outputs.size(), micro_batch.size()));
      for (size_t i = 0; i < micro_batch.size(); ++i) outputs[i].push_back(micro_batch[i]);
    }
  }
  std::vector<at::Tensor> whole_outputs;
  try {
    for (const std::vector<at::Tensor>& parts : outputs) whole_outputs.push_back(at::cat(parts));
  } catch (const c10::Error& error) {
    refuse("the outputs of the micro-batches: ", error.what_without_backtrace());
  }
  return whole_outputs;
}

void PipelineController::train(bool on) const {
  for (const PipelineStage& stage : stages_) {
    stage.host_.rpc_sync(&dist_optim_internal::ModuleHost::train, on);
  }
}

std::vector<StepDone> PipelineController::finish(uint64_t step, Runs runs) const {
  struct FirstFailure {
    Mutex mutex;
    absl::Status status ABSL_GUARDED_BY(mutex);
  };
  const auto first = std::make_shared<FirstFailure>();  // shared with the continuations
  for (Future<StepDone>& run : runs) {
    run = std::move(run).then([first, step, workers = workers_](
                                  const Future<StepDone>& ended) -> absl::StatusOr<StepDone> {
      const absl::StatusOr<StepDone>& result = ended.result();
      if (result.ok()) return result;
      {
        MutexLock lock(first->mutex);
        // Cancelled follows from another worker's failure, whichever comes first.
        const bool is_first = first->status.ok();
        if (is_first || absl::IsCancelled(first->status)) first->status = result.status();
        if (!is_first) return result;
      }
      // A worker that is dead, or has ended the step, does not mind.
      for (const RRef<PipelineWorker>& worker : workers) {
        (void)worker.rpc_async(&PipelineWorker::abort, step);
      }
      return result;
    });
  }
  std::vector<StepDone> done;
  for (const Future<StepDone>& run : runs) {
    const absl::StatusOr<StepDone>& result = run.result();
    if (result.ok()) {
      done.push_back(*result);
      continue;
    }
    MutexLock lock(first->mutex);
    if (first->status.ok()) first->status = result.status();  // its continuation was dropped
  }
  MutexLock lock(first->mutex);
  if (!first->status.ok()) throw RpcError(first->status);
  return done;
}

std::vector<RRef<ParameterSet>> PipelineController::parameters() const {
  std::vector<RRef<ParameterSet>> parameters;
  for (const PipelineStage& stage : stages_) parameters.push_back(stage.parameters_);
  return parameters;
}

}  // namespace weft::pipeline_internal
