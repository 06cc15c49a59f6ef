// Says which output of which stage each input of a stage is.
//
// Thread safety: pure functions.
// Errors: InvalidArgument, naming the stages.
#pragma once

#include <map>
#include <vector>

#include <ATen/core/Tensor.h>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "weft/pipeline/schedules/stage_graph.h"
#include "weft/pipeline/stage/stage_run.h"

namespace weft::pipeline_internal {

// By stage: its inputs, in the order in which the forward takes them. A stage without inputs takes
// the inputs of the pipeline.
using Wiring = std::vector<std::vector<StageOutput>>;

// Fails if a stage takes outputs of a stage that is not below it, or if the outputs of a stage
// other than the last one go nowhere.
absl::StatusOr<StageGraph> graph_of(const Wiring& wiring);

// What `to` takes of the outputs of `from`.
absl::StatusOr<StageTensors> outputs_for(const Wiring& wiring, int from, int to,
                                         const StageTensors& outputs);
// Puts together the inputs of a stage. `messages`: by stage, what outputs_for() gave.
absl::StatusOr<StageTensors> inputs_from(const Wiring& wiring, int stage,
                                         std::map<int, StageTensors> messages);
// Of the gradients of the inputs of `from`, those for the outputs of `to`.
std::vector<at::Tensor> gradients_for(const Wiring& wiring, int from, int to,
                                      const std::vector<at::Tensor>& gradients);
// Adds the gradients that stage `from` has for `outputs` outputs of stage `to`, as gradients_for()
// gave them.
absl::Status add_gradients(const Wiring& wiring, int from, int to,
                           const std::vector<at::Tensor>& gradients, std::vector<at::Tensor>& sums);

}  // namespace weft::pipeline_internal
