#include "weft/pipeline/runner/pipeline_worker.h"

#include <algorithm>
#include <chrono>
#include <cstring>
#include <set>
#include <utility>

#include <ATen/Parallel.h>
#include <ATen/ops/full.h>

#include "absl/strings/str_cat.h"
#include "weft/base/rpc_error.h"
#include "weft/base/status.h"
#include "weft/dist_autograd/graph/engine_scope.h"
#include "weft/pipeline/runner/step_gradients.h"
#include "weft/pipeline/schedules/price.h"
#include "weft/rpc/function.h"
#include "weft/rpc/verbs.h"

namespace weft::pipeline_internal {
namespace {

// Messages come before the step that takes them has begun here, for up to so many steps.
constexpr uint64_t kStepsAhead = 2;

using dist_optim_internal::ModuleHost;
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

template <class T>
T or_throw(absl::StatusOr<T> value) {
  if (!value.ok()) throw RpcError(value.status());
  return *std::move(value);
}

LossFunction loss_named(const std::string& name) {
  const auto runtime = or_throw(rpc_internal::current_runtime());
  const FunctionEntry* const entry = runtime->registry().find(hash64(name));
  // Only functions of exactly this type have this way to be invoked.
  if (entry == nullptr || entry->invoke != rpc_internal::callable_type(LossFunction()).invoke) {
    throw RpcError(absl::FailedPreconditionError(
        absl::StrCat("the loss ", name,
                     " is not registered on this worker as a function of two "
                     "const at::Tensor& that returns a tensor")));
  }
  LossFunction function = nullptr;
  std::memcpy(&function, entry->callable.bytes.data(), sizeof(function));
  return function;
}

absl::StatusOr<StageWork> work_of(char letter) {
  for (const StageWork work :
       {StageWork::kForward, StageWork::kInputGradients, StageWork::kBackward}) {
    if (letter == static_cast<char>(work)) return work;
  }
  return absl::InvalidArgumentError("a message of a pipeline is of an F, I or B");
}

}  // namespace

// ---- one step

class PipelineWorker::Step {
 public:
  Step(PipelineWorker& worker, StepStart start, std::shared_ptr<StepState> state,
       TimePoint deadline)
      : worker_(worker),
        plan_(worker.plan_),
        start_(std::move(start)),
        state_(std::move(state)),
        deadline_(deadline),
        runtime_(CallScope::current().runtime),
        last_stage_(static_cast<int>(plan_.wiring.size()) - 1) {
    for (const RunPlan::Action& each : worker.row_->actions) {
      const auto& [stage, work, micro_batch] = each.action;
      if (work == StageWork::kRecompute) recomputed_.insert({stage, micro_batch});
      if (runs_.contains(stage)) continue;
      runs_.try_emplace(stage, StageRun::Options{stage, worker.row_->micro_batches, start_.seed,
                                                 forward_of(stage)});
    }
  }

  absl::StatusOr<StepDone> compute() {
    at::init_num_threads();
    while (true) {
      WEFT_ASSIGN_OR_RETURN(const RunPlan::Action* const action, state_->wait_next(deadline_));
      if (action == nullptr) break;
      const double begin = seconds();
      WEFT_RETURN_IF_ERROR(perform(*action));
      const ptrdiff_t place = action - worker_.row_->actions.data();
      executed_.push_back({static_cast<uint32_t>(place), begin, seconds()});
    }
    std::vector<dist_autograd_internal::LeafGradient> gradients;
    for (auto& [stage, run] : runs_) {
      WEFT_ASSIGN_OR_RETURN(auto sums, run.take_gradients());
      for (auto& sum : sums) gradients.push_back(std::move(sum));
    }
    WEFT_RETURN_IF_ERROR(state_->wait_sent(deadline_));
    return StepDone{gradient_token(std::move(gradients)), std::move(losses_), std::move(executed_)};
  }

 private:
  StageRun::Forward forward_of(int stage) {
    // The plan holds the reference, and so the module.
    ModuleHost* const module = &plan_.modules.at(stage).local_value();
    if (stage != last_stage_) {
      return
          [module](std::vector<at::Tensor> inputs) { return module->forward(std::move(inputs)); };
    }
    return [this, module](std::vector<at::Tensor> inputs) {
      const std::vector<at::Tensor> outputs = module->forward(std::move(inputs));
      if (outputs.empty()) throw RpcError(absl::InvalidArgumentError("forward returned no tensor"));
      at::Tensor value = worker_.loss_(outputs.front(), start_.targets[running_]);
      if (!value.defined() || value.numel() != 1) {
        throw RpcError(absl::InvalidArgumentError("the loss is no scalar"));
      }
      return std::vector<at::Tensor>{std::move(value)};
    };
  }

  absl::Status perform(const RunPlan::Action& action) {
    StageRun& run = runs_.at(action.action.stage);
    const int micro_batch = action.action.micro_batch;
    running_ = static_cast<size_t>(micro_batch);
    switch (action.action.work) {
      case StageWork::kForward:
        return forward(action, run);
      case StageWork::kRecompute:
        return run.recompute(micro_batch);
      case StageWork::kInputGradients:
      case StageWork::kBackward:
        return backward(action, run);
      case StageWork::kWeightGradients:
        return run.weight_gradients(micro_batch);
      case StageWork::kReduce:
        break;  // observers of the leaves do it in the backward pass
    }
    return absl::OkStatus();
  }

  absl::Status forward(const RunPlan::Action& action, StageRun& run) {
    const auto [stage, work, micro_batch] = action.action;
    WEFT_ASSIGN_OR_RETURN(StageTensors inputs, inputs_of(action));
    WEFT_ASSIGN_OR_RETURN(
        const StageTensors outputs,
        run.forward(micro_batch, std::move(inputs), recomputed_.contains({stage, micro_batch})));
    output_counts_[stage] = outputs.values.size();
    if (stage == last_stage_) {
      if (!outputs.requires_grad.front()) {
        return absl::InvalidArgumentError(absl::StrCat(
            action.action.to_string(), ": the loss depends on no tensor that requires a gradient"));
      }
      losses_.resize(static_cast<size_t>(worker_.row_->micro_batches));
      losses_[static_cast<size_t>(micro_batch)] = outputs.values.front().item<double>();
      loss_types_[micro_batch] = outputs.values.front().options();
    }
    for (const StageMessage& message : action.makes) {
      WEFT_ASSIGN_OR_RETURN(StageTensors part,
                            outputs_for(plan_.wiring, stage, message.to_stage, outputs));
      send(message, std::move(part));
    }
    return absl::OkStatus();
  }

  absl::StatusOr<StageTensors> inputs_of(const RunPlan::Action& action) {
    StageTensors inputs;
    if (action.takes.empty()) {
      inputs.values = start_.inputs[static_cast<size_t>(action.action.micro_batch)];
      inputs.requires_grad.resize(inputs.values.size());
      return inputs;
    }
    std::map<int, StageTensors> messages;
    for (const StageMessage& message : action.takes) {
      WEFT_ASSIGN_OR_RETURN(messages[message.from.stage], state_->take(message));
    }
    return inputs_from(plan_.wiring, action.action.stage, std::move(messages));
  }

  absl::Status backward(const RunPlan::Action& action, StageRun& run) {
    const auto [stage, work, micro_batch] = action.action;
    WEFT_ASSIGN_OR_RETURN(std::vector<at::Tensor> gradients, gradients_of(action));
    WEFT_ASSIGN_OR_RETURN(const std::vector<at::Tensor> answers,
                          work == StageWork::kBackward
                              ? run.backward(micro_batch, std::move(gradients))
                              : run.input_gradients(micro_batch, std::move(gradients)));
    for (const StageMessage& message : action.makes) {
      StageTensors part;
      part.values = gradients_for(plan_.wiring, stage, message.to_stage, answers);
      part.requires_grad.resize(part.values.size());
      send(message, std::move(part));
    }
    return absl::OkStatus();
  }

  // Sums the gradients of later stages first, as one graph does.
  absl::StatusOr<std::vector<at::Tensor>> gradients_of(const RunPlan::Action& action) {
    const auto [stage, work, micro_batch] = action.action;
    if (stage == last_stage_) {
      const double weight = start_.weights[static_cast<size_t>(micro_batch)];
      return std::vector<at::Tensor>{at::full({}, weight, loss_types_.at(micro_batch))};
    }
    std::vector<at::Tensor> sums(output_counts_.at(stage));
    for (auto message = action.takes.rbegin(); message != action.takes.rend(); ++message) {
      WEFT_ASSIGN_OR_RETURN(const StageTensors tensors, state_->take(*message));
      WEFT_RETURN_IF_ERROR(
          add_gradients(plan_.wiring, message->from.stage, stage, tensors.values, sums));
    }
    return sums;
  }

  void send(const StageMessage& message, StageTensors tensors) {
    const int row = worker_.row_->row_of[static_cast<size_t>(message.to_stage)];
    if (row == plan_.row) return state_->keep(message, std::move(tensors));
    const WorkerId to = WorkerId::from_bits(plan_.workers[static_cast<size_t>(row)]);
    PipelineMessage sent;
    sent.pipeline = plan_.id;
    sent.step = start_.number;
    sent.from_stage = message.from.stage;
    sent.work = static_cast<char>(message.from.work);
    sent.micro_batch = message.from.micro_batch;
    sent.to_stage = message.to_stage;
    sent.values = std::move(tensors.values);
    sent.requires_grad.assign(tensors.requires_grad.begin(), tensors.requires_grad.end());
    // No graph leads from one worker to another, so the context need not know of the message.
    CallScope scope = CallScope::current();
    scope.context = {};
    const CallScopeGuard guard(std::move(scope));
    state_->sending();
    (void)rpc_async({runtime_, to, {.timeout = remaining()}}, bring_message, std::move(sent))
        .then([state = state_, name = message.to_string()](const Future<void>& taken) {
          const absl::Status outcome = taken.result().status();
          state->sent(outcome.ok() ? outcome : prepend(absl::StrCat(name, ": "), outcome));
        });
  }

  // Since this worker began the step.
  double seconds() const {
    return std::chrono::duration<double>(runtime_->clock().now() - begun_).count();
  }
  Timeout remaining() const {
    if (deadline_ == kNever) return absl::InfiniteDuration();
    return deadline_ - runtime_->clock().now();
  }

  PipelineWorker& worker_;
  const PipelinePlan& plan_;
  const StepStart start_;
  const std::shared_ptr<StepState> state_;  // shared with calls that bring messages
  const TimePoint deadline_;
  const std::shared_ptr<RpcRuntime> runtime_;  // of the scope
  const TimePoint begun_ = runtime_->clock().now();
  const int last_stage_;
  size_t running_ = 0;                           // micro-batch of the action that runs
  std::set<std::pair<int, int>> recomputed_;     // stage, micro-batch
  std::map<int, StageRun> runs_;                 // by stage
  std::map<int, size_t> output_counts_;          // by stage
  std::map<int, at::TensorOptions> loss_types_;  // by micro-batch
  std::vector<double> losses_;
  std::vector<ExecutedAction> executed_;
};

// ---- the worker

PipelineWorker::PipelineWorker(PipelinePlan plan)
    : plan_(std::move(plan)), thread_(SerialThread::AtEnd::kDrop, "a pipeline") {
  const PipelineSchedule schedule = or_throw(PipelineSchedule::from_csv(plan_.schedule));
  const StageGraph graph = or_throw(graph_of(plan_.wiring));
  row_ = or_throw(RunPlan::make(schedule, graph, plan_.row));
  bool fits = plan_.workers.size() == schedule.workers.size();
  for (const RunPlan::Action& each : row_->actions) {
    fits = fits && plan_.modules.contains(each.action.stage);
  }
  if (!fits) {
    throw RpcError(absl::InvalidArgumentError("the parts of a pipeline's plan do not fit"));
  }
  here_ = or_throw(rpc_internal::current_runtime())->id();
  loss_ = loss_named(plan_.loss);
}

PipelineWorker::~PipelineWorker() { OpenPipelines::instance().remove({here_, plan_.id}); }

absl::StatusOr<std::shared_ptr<StepState>> PipelineWorker::state_of(uint64_t step,
                                                                    uint64_t most_ahead) {
  MutexLock lock(mutex_);
  if (step <= ended_ || step - ended_ > most_ahead) {
    return absl::FailedPreconditionError(
        absl::StrCat("step ", step, " is over or too far ahead; the last one was ", ended_));
  }
  std::shared_ptr<StepState>& state = steps_[step];
  if (state == nullptr) state = std::make_shared<StepState>(row_);
  return state;
}

void PipelineWorker::end(uint64_t step) {
  MutexLock lock(mutex_);
  ended_ = std::max(ended_, step);
  steps_.erase(steps_.begin(), steps_.upper_bound(ended_));
}

Future<StepDone> PipelineWorker::run(CallContext& call, StepStart start) {
  // The calls of some steps may not have come here at all.
  std::shared_ptr<StepState> state = or_throw(state_of(start.number, UINT64_MAX));
  if (absl::Status fits = check(start); !fits.ok()) {
    end(start.number);
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
    self->end(number);
    promise.set(std::move(result));
  }));
  return done;
}

absl::StatusOr<StepDone> PipelineWorker::compute(StepStart start,
                                                 const std::shared_ptr<StepState>& state,
                                                 TimePoint deadline) {
  absl::StatusOr<StepDone> done = absl::UnknownError("");
  try {
    done = Step(*this, std::move(start), state, deadline).compute();
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
    const bool first = plan_.wiring[stage].empty();
    const bool last = stage + 1 == plan_.wiring.size();
    if ((first && start.inputs.size() != micro_batches) ||
        (last &&
         (start.targets.size() != micro_batches || start.weights.size() != micro_batches))) {
      return absl::InvalidArgumentError(absl::StrCat("stage ", stage,
                                                     " needs inputs or targets of ", micro_batches,
                                                     " micro-batches, and got another number"));
    }
  }
  return absl::OkStatus();
}

void PipelineWorker::abort(uint64_t step) {
  const absl::StatusOr<std::shared_ptr<StepState>> state = state_of(step, kStepsAhead);
  // If it is not there, the step has ended.
  if (state.ok()) (*state)->fail(absl::CancelledError("another worker of the pipeline failed"));
}

absl::Status PipelineWorker::arrived(PipelineMessage message) {
  if (message.values.size() != message.requires_grad.size()) {
    return absl::InvalidArgumentError("a message of a pipeline has too few or too many flags");
  }
  WEFT_ASSIGN_OR_RETURN(const StageWork work, work_of(message.work));
  WEFT_ASSIGN_OR_RETURN(const std::shared_ptr<StepState> state,
                        state_of(message.step, kStepsAhead));
  StageTensors tensors;
  tensors.values = std::move(message.values);
  tensors.requires_grad.assign(message.requires_grad.begin(), message.requires_grad.end());
  return state->arrived({{message.from_stage, work, message.micro_batch}, message.to_stage},
                        std::move(tensors));
}

std::shared_ptr<PipelineWorker> open_pipeline(PipelinePlan plan) {
  const PipelineId id = plan.id;
  auto worker = std::make_shared<PipelineWorker>(std::move(plan));
  OpenPipelines::instance().add({or_throw(rpc_internal::current_runtime())->id(), id}, worker);
  return worker;
}

void bring_message(PipelineMessage message) {
  const WorkerId here = or_throw(rpc_internal::current_runtime())->id();
  const auto worker = OpenPipelines::instance().find({here, message.pipeline});
  if (worker == nullptr) throw RpcError(absl::NotFoundError("this worker has no such pipeline"));
  if (absl::Status taken = worker->arrived(std::move(message)); !taken.ok()) throw RpcError(taken);
}

WEFT_DEFINE_CLASS(PipelineWorker);
WEFT_REGISTER_FUNCTION(open_pipeline);
WEFT_REGISTER_FUNCTION(bring_message, run_inline);

}  // namespace weft::pipeline_internal
