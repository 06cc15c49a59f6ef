// One trainer's training steps, from its first layers through the server's last ones and back.
//
// Thread safety: belongs to one thread, for which `worker` is the current one.
// Lifetime: the worker outlives it. Blocking: every method that needs the server waits for it.
// Errors: RpcError.
#pragma once

#include <vector>

#include "weft/dist_optim/state_file.h"
#include "weft/examples/parameter_server/options.h"
#include "weft/examples/parameter_server/server.h"
#include "weft/examples/parameter_server/trained_layers.h"
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

  // Weights and what the optimizer remembers, of this trainer and of the server.
  struct State {
    TensorMap trainer;
    TensorMap server;
  };
  State state() const;
  // The server's half is loaded by one trainer for all.
  void load_state(const State& state, bool server_too);

 private:
  const Worker& worker_;
  const RRef<Classifier> classifier_;
  FeatureLayers layers_;
  TrainedLayers own_;
  const double learning_rate_;
  uint64_t steps_ = 0;
};

}  // namespace weft::examples
