// Runs the forwards of a worker's row, without a graph.
//
// Thread safety: a free function; one thread at a time runs a step. The thread's scope has no
// context, so the modules use their current parameters (module_host.h).
// Errors: the message begins with the action, such as "1F3: ".
#pragma once

#include "absl/status/statusor.h"
#include "weft/pipeline/runner/pipeline_messages.h"
#include "weft/pipeline/runner/step_exchange.h"

namespace weft::pipeline_internal {

// Returns when the row is done: the outputs of the last stage, if it is here.
absl::StatusOr<StepDone> evaluate(StepExchange& exchange);

}  // namespace weft::pipeline_internal
