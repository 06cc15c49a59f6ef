// The loss of a pipeline: a registered function that the last stage runs after its forward.
//
// Thread safety: free functions.
// Errors: RpcError.
#pragma once

#include <functional>
#include <string>

#include <ATen/core/Tensor.h>

#include "weft/pipeline/stage/stage_run.h"

namespace weft::pipeline_internal {

// A function of the first output of the last stage and a target. It returns a scalar: the mean over
// the micro-batch.
using LossFunction = at::Tensor (*)(const at::Tensor& output, const at::Tensor& target);

// The name by which another worker finds the loss. InvalidArgument: there is none.
// FailedPrecondition: it is not registered.
std::string name_of_loss(LossFunction loss);
// FailedPrecondition: this worker has no loss of this name.
LossFunction loss_named(const std::string& name);

// A forward that returns the loss of the first output. It throws InvalidArgument if there is no
// output, or if the loss is no scalar. The loss gets a target of its own, which it may change.
StageRun::Forward with_loss(StageRun::Forward forward, LossFunction loss,
                            std::function<at::Tensor()> target);

}  // namespace weft::pipeline_internal
