// One trainer's training steps, from its first layers through the server's last ones and back.
//
// Thread safety: belongs to one thread, for which `worker` is the current one.
// Lifetime: the worker outlives it. Blocking: every method that needs the server waits for it.
// Errors: RpcError.
#pragma once

#include <memory>
#include <vector>

#include "weft/dist_optim/distributed_optimizer.h"
#include "weft/dist_optim/state_file.h"
#include "weft/examples/parameter_server/options.h"
#include "weft/examples/parameter_server/server.h"
#include "weft/examples/support/fashion_mnist.h"
#include "weft/worker/worker.h"

namespace weft::examples {

class Trainer {
 public:
  // `trainers`: how many train at the same time.
  Trainer(const Worker& worker, const JobOptions& options, size_t trainers);

  // Learns from one batch and returns its loss. `progress`, from 0 to 1, is how much of the run is
  // done: the learning rate depends on it.
  double step(const Batch& batch, double progress);

  // This trainer's own layers; what the trainers average.
  std::vector<at::Tensor> own_layers() const;
  void set_own_layers(const std::vector<at::Tensor>& values);

  // The share of right answers, with the server in evaluation mode. Nobody may train meanwhile.
  double evaluate(const LabelledImages& data);

  // Weights of both halves, and what the optimizer remembers of them.
  struct State {
    TensorMap trainer;
    TensorMap server;
    TensorMap optimizer;
  };
  State state() const;
  void load_state(const State& state);

 private:
  const WorkerScope scope_;  // this thread works for it
  const Classifier classifier_;
  FeatureLayers layers_;
  const std::shared_ptr<ParameterSet> own_;  // shared with the optimizer's shard here
  const double learning_rate_;
  DistributedOptimizer<torch::optim::Adam> optimizer_;
};

}  // namespace weft::examples
