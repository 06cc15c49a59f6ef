#include "weft/pipeline/runner/training_step.h"

#include <ATen/ops/full_like.h>

#include "absl/strings/str_cat.h"
#include "weft/base/status.h"
#include "weft/pipeline/runner/step_gradients.h"

namespace weft::pipeline_internal {

TrainingStep::TrainingStep(StepExchange& exchange, const RunPlan& row, LossFunction loss)
    : exchange_(exchange), loss_(loss) {
  for (const RunPlan::Action& each : row.actions) {
    const auto& [stage, work, micro_batch] = each.action;
    if (work == StageWork::kRecompute) recomputed_.insert({stage, micro_batch});
    if (runs_.contains(stage)) continue;
    auto& module = exchange.part().modules.at(stage).local_value();
    const RandomTurn turn;  // a replica's constructor draws, and puts the generator's state back
    held_.push_back(module.hold());
    runs_.try_emplace(stage, StageRun::Options{stage, row.micro_batches, exchange.start().seed,
                                               forward_of(stage)});
  }
}

absl::StatusOr<StepDone> TrainingStep::run() {
  while (true) {
    WEFT_ASSIGN_OR_RETURN(const RunPlan::Action* const action, exchange_.next());
    if (action == nullptr) break;
    WEFT_RETURN_IF_ERROR(perform(*action));
  }
  std::vector<dist_autograd_internal::LeafGradient> gradients;
  for (auto& [stage, run] : runs_) {
    WEFT_ASSIGN_OR_RETURN(auto sums, run.take_gradients());
    for (auto& sum : sums) gradients.push_back(std::move(sum));
  }
  StepDone done;
  done.token = gradient_token(std::move(gradients));
  for (const auto& [micro_batch, value] : loss_values_) {
    done.losses.push_back(value.item<double>());
  }
  return done;
}

StageRun::Forward TrainingStep::forward_of(int stage) {
  // The plan holds the reference, and so the module.
  auto* const module = &exchange_.part().modules.at(stage).local_value();
  StageRun::Forward forward = [module](std::vector<at::Tensor> inputs) {
    return module->forward(std::move(inputs));
  };
  if (stage != exchange_.last_stage()) return forward;
  return with_loss(std::move(forward), loss_,
                   [this] { return exchange_.start().targets[running_]; });
}

absl::Status TrainingStep::perform(const RunPlan::Action& action) {
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

absl::Status TrainingStep::forward(const RunPlan::Action& action, StageRun& run) {
  const auto [stage, work, micro_batch] = action.action;
  WEFT_ASSIGN_OR_RETURN(StageTensors inputs, exchange_.inputs_of(action));
  WEFT_ASSIGN_OR_RETURN(
      const StageTensors outputs,
      run.forward(micro_batch, std::move(inputs), recomputed_.contains({stage, micro_batch})));
  output_counts_[stage] = outputs.values.size();
  if (stage == exchange_.last_stage()) return note_loss(action.action, outputs);
  return exchange_.send_outputs(action, outputs);
}

absl::Status TrainingStep::note_loss(const StageAction& action, const StageTensors& outputs) {
  if (!outputs.requires_grad.front()) {
    return absl::InvalidArgumentError(absl::StrCat(
        action.to_string(), ": the loss depends on no tensor that requires a gradient"));
  }
  loss_values_[action.micro_batch] = outputs.values.front();
  return absl::OkStatus();
}

absl::Status TrainingStep::backward(const RunPlan::Action& action, StageRun& run) {
  const auto [stage, work, micro_batch] = action.action;
  std::vector<at::Tensor> gradients;
  if (stage == exchange_.last_stage()) {
    gradients.push_back(
        at::full_like(loss_values_.at(micro_batch), exchange_.start().weights[running_]));
  } else {
    WEFT_ASSIGN_OR_RETURN(gradients, exchange_.gradients_of(action, output_counts_.at(stage)));
  }
  WEFT_ASSIGN_OR_RETURN(const std::vector<at::Tensor> answers,
                        work == StageWork::kBackward
                            ? run.backward(micro_batch, std::move(gradients))
                            : run.input_gradients(micro_batch, std::move(gradients)));
  return exchange_.send_gradients(action, answers);
}

}  // namespace weft::pipeline_internal
