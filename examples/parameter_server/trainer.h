// One trainer's training steps, from its first layers through the server's last ones and back.
//
// Thread safety: belongs to one thread, for which `worker` is the current one.
// Lifetime: the worker outlives it. Blocking: every method that needs the server waits for it.
// Errors: RpcError.
#pragma once

#include <map>
#include <memory>
#include <optional>
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

  // The server that keeps itself (server.h) has come back, `step` was refused: finds it again, goes
  // back to the last step that it still has, this trainer's layers included, and returns its
  // number: the next step is the one after. A step that the server has and whose answer was lost
  // with it is redone; if the server cannot go back behind it, it counts there alone. RpcError,
  // DataLoss: that was too long ago.
  uint64_t reconnect();

 private:
  using Optimizer = DistributedOptimizer<torch::optim::Adam>;
  // This trainer's half as it was after a step.
  struct Moment {
    TensorMap layers;
    TensorMap adam;
  };

  Optimizer make_optimizer() const;
  void keep_moment();

  const JobOptions options_;
  const WorkerScope scope_;  // this thread works for it
  Classifier classifier_;
  FeatureLayers layers_;
  const std::shared_ptr<ParameterSet> own_;  // shared with the optimizer's shard here
  const double learning_rate_;
  std::optional<Optimizer> optimizer_;
  uint64_t step_ = 0;
  std::map<uint64_t, Moment> moments_;  // of steps that the server may go back to
};

}  // namespace weft::examples
