#include "weft/pipeline/runner/evaluation_step.h"

#include <utility>
#include <vector>

#include "absl/strings/str_cat.h"
#include "weft/base/status.h"
#include "weft/dist_autograd/graph/engine_scope.h"

namespace weft::pipeline_internal {
namespace {

absl::StatusOr<StageTensors> run_module(dist_optim_internal::ModuleHost& module,
                                        StageTensors inputs) {
  try {
    for (at::Tensor& value : inputs.values) value = own_memory(std::move(value));
    StageTensors outputs;
    outputs.values = module.forward(std::move(inputs.values));
    outputs.requires_grad.resize(outputs.values.size());
    return outputs;
  } catch (...) {
    return absl::UnknownError(dist_autograd_internal::text_of_current_exception());
  }
}

}  // namespace

absl::StatusOr<StepDone> evaluate(StepExchange& exchange) {
  StepDone done;
  while (true) {
    WEFT_ASSIGN_OR_RETURN(const RunPlan::Action* const action, exchange.next());
    if (action == nullptr) return done;
    const int stage = action->action.stage;
    WEFT_ASSIGN_OR_RETURN(StageTensors inputs, exchange.inputs_of(*action));
    absl::StatusOr<StageTensors> outputs =
        run_module(exchange.part().modules.at(stage).local_value(), std::move(inputs));
    if (!outputs.ok()) {
      return prepend(absl::StrCat(action->action.to_string(), ": "), outputs.status());
    }
    if (stage == exchange.last_stage()) {
      done.outputs.resize(static_cast<size_t>(exchange.micro_batches()));
      done.outputs[static_cast<size_t>(action->action.micro_batch)] = std::move(outputs->values);
    } else {
      WEFT_RETURN_IF_ERROR(exchange.send_outputs(*action, *outputs));
    }
  }
}

}  // namespace weft::pipeline_internal
