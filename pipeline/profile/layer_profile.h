// Measures what one micro-batch costs in each of several layers, on the worker where they are.
//
// It runs forward, input gradients and weight gradients of all layers, as the stages of a pipeline
// do, each layer as a stage of its own. The times are medians over many micro-batches. The bytes
// are those of one micro-batch.
//
// Thread safety: a free function; several calls may run at the same time.
// Blocking: computes for about ProfileRequest::seconds, for at least 5 micro-batches and at most
// 10,000.
// Errors: RpcError. The message begins with the layer as a stage, such as "3F0: ".
#pragma once

#include <string>
#include <tuple>
#include <vector>

#include <ATen/core/Tensor.h>

#include "weft/dist_optim/module_host.h"
#include "weft/pipeline/schedules/price.h"
#include "weft/rpc/session/call_scope.h"
#include "weft/rref/rref.h"

namespace weft {

inline auto weft_fields(StageCosts& c) {
  return std::tie(c.forward, c.input_gradients, c.weight_gradients, c.output_bytes, c.input_bytes,
                  c.kept_bytes, c.kept_for_weights, c.gradient_bytes);
}

namespace pipeline_internal {

struct ProfileRequest {
  // Each takes all outputs of the one before it. They are here.
  std::vector<RRef<dist_optim_internal::ModuleHost>> layers;
  std::vector<at::Tensor> inputs;  // of one micro-batch
  at::Tensor target;
  std::string loss;  // its wire name; its time counts to the last layer
  double seconds = 1;
};
inline auto weft_fields(ProfileRequest& r) {
  return std::tie(r.layers, r.inputs, r.target, r.loss, r.seconds);
}

// By layer; `input_bytes` and `kept_bytes` as PlanDivision says. Call it under a context, which it
// gives no gradients. It ends early if the call is cancelled.
std::vector<StageCosts> profile_layers(CallContext& call, const ProfileRequest& request);

}  // namespace pipeline_internal
}  // namespace weft
