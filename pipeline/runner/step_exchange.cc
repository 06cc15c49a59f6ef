#include "weft/pipeline/runner/step_exchange.h"

#include <chrono>
#include <map>
#include <utility>

#include "absl/strings/str_cat.h"
#include "weft/base/status.h"
#include "weft/pipeline/runner/pipeline_worker.h"
#include "weft/rpc/session/call_scope.h"
#include "weft/rpc/verbs.h"

namespace weft::pipeline_internal {

namespace {

size_t input_stages(const StepExchange::Parts& parts) {
  size_t count = 0;
  for (const auto& [stage, module] : parts.part.modules) {
    count += parts.part.wiring[static_cast<size_t>(stage)].empty() ? 1 : 0;
  }
  return count;
}

}  // namespace

StepExchange::StepExchange(Parts parts)
    : parts_(std::move(parts)),
      runtime_(CallScope::current().runtime),
      begun_(runtime_->clock().now()),
      gives_inputs_(input_stages(parts_) == 1) {}

absl::StatusOr<const RunPlan::Action*> StepExchange::next() {
  if (std::exchange(running_, false)) executed_.back().end = seconds();
  WEFT_ASSIGN_OR_RETURN(const RunPlan::Action* const action,
                        parts_.state->wait_next(parts_.deadline));
  if (action == nullptr) {
    WEFT_RETURN_IF_ERROR(parts_.state->wait_sent(parts_.deadline));
    return nullptr;
  }
  running_ = true;
  const ptrdiff_t place = action - parts_.row.actions.data();
  executed_.push_back({static_cast<uint32_t>(place), seconds(), 0});
  return action;
}

absl::StatusOr<StageTensors> StepExchange::inputs_of(const RunPlan::Action& action) {
  StageTensors inputs;
  if (action.takes.empty()) {
    std::vector<at::Tensor>& given =
        parts_.start.inputs[static_cast<size_t>(action.action.micro_batch)];
    inputs.values = gives_inputs_ ? std::move(given) : given;
    inputs.requires_grad.resize(inputs.values.size());
    return inputs;
  }
  std::map<int, StageTensors> messages;
  for (const StageMessage& message : action.takes) {
    WEFT_ASSIGN_OR_RETURN(messages[message.from.stage], parts_.state->take(message));
  }
  return inputs_from(parts_.part.wiring, action.action.stage, std::move(messages));
}

absl::Status StepExchange::send_outputs(const RunPlan::Action& action,
                                        const StageTensors& outputs) {
  for (const StageMessage& message : action.makes) {
    WEFT_ASSIGN_OR_RETURN(StageTensors part, outputs_for(parts_.part.wiring, action.action.stage,
                                                         message.to_stage, outputs));
    WEFT_RETURN_IF_ERROR(send(message, std::move(part)));
  }
  return absl::OkStatus();
}

absl::StatusOr<std::vector<at::Tensor>> StepExchange::gradients_of(const RunPlan::Action& action,
                                                                   size_t outputs) {
  std::vector<at::Tensor> sums(outputs);
  for (auto message = action.takes.rbegin(); message != action.takes.rend(); ++message) {
    WEFT_ASSIGN_OR_RETURN(const StageTensors tensors, parts_.state->take(*message));
    WEFT_RETURN_IF_ERROR(add_gradients(parts_.part.wiring, message->from.stage, action.action.stage,
                                       tensors.values, sums));
  }
  return sums;
}

absl::Status StepExchange::send_gradients(const RunPlan::Action& action,
                                          const std::vector<at::Tensor>& gradients) {
  for (const StageMessage& message : action.makes) {
    StageTensors part;
    part.values =
        gradients_for(parts_.part.wiring, action.action.stage, message.to_stage, gradients);
    part.requires_grad.resize(part.values.size());
    WEFT_RETURN_IF_ERROR(send(message, std::move(part)));
  }
  return absl::OkStatus();
}

absl::Status StepExchange::send(const StageMessage& message, StageTensors tensors) {
  const int row = parts_.row.row_of[static_cast<size_t>(message.to_stage)];
  if (row == parts_.part.row) {
    parts_.state->keep(message, std::move(tensors));
    return absl::OkStatus();
  }
  const WorkerId to = WorkerId::from_bits(parts_.part.workers[static_cast<size_t>(row)]);
  PipelineMessage sent;
  sent.pipeline = parts_.part.id;
  sent.step = parts_.start.number;
  sent.evaluates = parts_.start.evaluates;
  sent.from_stage = message.from.stage;
  sent.work = static_cast<char>(message.from.work);
  sent.micro_batch = message.from.micro_batch;
  sent.to_stage = message.to_stage;
  sent.values = std::move(tensors.values);
  sent.requires_grad.assign(tensors.requires_grad.begin(), tensors.requires_grad.end());
  CallScope scope = CallScope::current();
  scope.context = {};
  const CallScopeGuard guard(std::move(scope));
  size_t bytes = 0;
  for (const at::Tensor& value : sent.values) bytes += value.defined() ? value.nbytes() : 0;
  WEFT_RETURN_IF_ERROR(parts_.state->sending(bytes, parts_.deadline));
  (void)rpc_async({runtime_, to, {.timeout = remaining()}}, bring_message, std::move(sent))
      .then([state = parts_.state, bytes, name = message.to_string()](const Future<void>& taken) {
        const absl::Status outcome = taken.result().status();
        state->sent(bytes, outcome.ok() ? outcome : prepend(absl::StrCat(name, ": "), outcome));
      });
  return absl::OkStatus();
}

double StepExchange::seconds() const {
  return std::chrono::duration<double>(runtime_->clock().now() - begun_).count();
}

Timeout StepExchange::remaining() const {
  if (parts_.deadline == kNever) return absl::InfiniteDuration();
  return parts_.deadline - runtime_->clock().now();
}

}  // namespace weft::pipeline_internal
