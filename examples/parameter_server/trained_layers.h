// A worker's half of the network as it is trained: its parameters, and Adam where they live.
//
// A step is prepared, which refuses what does not fit, and then committed, which cannot fail: so
// both halves take a step or none does.
//
// Thread safety: all methods may be called from any thread.
// Errors: RpcError.
#pragma once

#include <memory>

#include "weft/base/ids.h"
#include "weft/dist_optim/internal/shard_stepper.h"
#include "weft/dist_optim/parameter_set.h"
#include "weft/dist_optim/state_file.h"

namespace torch::nn {
class Module;
}

namespace weft::examples {

using internal::StepId;

class TrainedLayers {
 public:
  explicit TrainedLayers(const torch::nn::Module& layers,
                         ParameterSet::Reading reading = ParameterSet::Reading::kVersions);

  ParameterSet& parameters() { return *parameters_; }

  // Takes the gradients that the context's backward pass left on this worker.
  void prepare(const StepId& step, const ContextId& context);
  void commit(const StepId& step, double learning_rate);
  void abort(const StepId& step);

  // Parameters by name, and what Adam remembers of them under "adam/".
  TensorMap state() const;
  void load_state(const TensorMap& state);

 private:
  const std::shared_ptr<ParameterSet> parameters_;  // shared with the stepper
  const std::shared_ptr<internal::ShardStepper> adam_;
};

}  // namespace weft::examples
