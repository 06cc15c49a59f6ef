// Runs the training steps of one trainer: forward through its own layers and the server's, and
// back.
//
// Thread safety: belongs to one thread, for which `worker` is the current one.
// Lifetime: the worker outlives it. Blocking: every method that needs the server waits for it.
// Errors: RpcError.
#pragma once

#include <map>
#include <memory>
#include <optional>
#include <vector>

#include "weft/checkpoint/state_file.h"
#include "weft/dist_optim/distributed_optimizer.h"
#include "weft/examples/parameter_server/options.h"
#include "weft/examples/parameter_server/position.h"
#include "weft/examples/parameter_server/server.h"
#include "weft/examples/parameter_server/step_ledger.h"
#include "weft/examples/support/fashion_mnist.h"
#include "weft/worker/worker.h"

namespace weft::examples {

class Trainer {
 public:
  // `trainers`: how many train at the same time.
  Trainer(const Worker& worker, const JobOptions& options, size_t trainers);

  // Trains on one batch and returns its loss. `progress`, from 0 to 1, says how much of the run is
  // done; the learning rate depends on it. `then` is the position of the job after this step.
  double step(const Batch& batch, double progress, const Position& then = {});
  uint64_t number() const { return step_; }  // of the last step, over all incarnations

  // This trainer's own layers, which the trainers average.
  std::vector<at::Tensor> own_layers() const;
  void set_own_layers(const std::vector<at::Tensor>& values);

  // Returns the fraction of right answers, with the server in evaluation mode. No trainer may train
  // meanwhile.
  double evaluate(const LabelledImages& data);

  // The weights of both halves, and the optimizer's state of them.
  struct State {
    TensorMap trainer;
    TensorMap server;
    TensorMap optimizer;
  };
  State state() const;
  void load_state(const State& state);

  // ---- with a server that saves itself (server.h)

  // Call it when `step` was refused because the server had restarted. Finds the new server and goes
  // back, with this trainer's layers, to the last step that the server still has. Returns the
  // position of the job at that step. The next step is number() + 1.
  // If the server has applied a step whose answer was lost, only the server's half holds this step.
  // Throws RpcError, DataLoss if this trainer no longer keeps its state of that step.
  Position reconnect();
  // Call it when this trainer was restarted. It continues after the last step of its earlier
  // incarnation that the server has. Throws Unavailable if one of those steps is still undecided;
  // then try again soon.
  void come_back();
  // The server may go back to this position. If the server goes back further, this trainer stays at
  // this position, because it does not know earlier ones.
  void stand_at(const Position& position);
  // The earliest position to which this trainer can go back.
  const Position& earliest() const { return moments_.begin()->second.position; }

 private:
  using Optimizer = DistributedOptimizer<torch::optim::Adam>;
  // This trainer's half as it was after a step, before any round that followed.
  struct Moment {
    Position position;
    TensorMap layers;
    TensorMap adam;
  };

  Optimizer make_optimizer() const;
  void keep_moment(const Position& position);

  const JobOptions options_;
  const WorkerScope scope_;  // makes the worker the current one of this thread
  Classifier classifier_;
  FeatureLayers layers_;
  const std::shared_ptr<ParameterSet> own_;  // shared with the optimizer's shard here
  const double learning_rate_;
  StepLedger ledger_;
  std::optional<Optimizer> optimizer_;
  uint64_t step_ = 0;
  std::map<uint64_t, Moment> moments_;  // by step, for the steps that the server may go back to
  Position expected_;                   // the position after the step under way
  bool knows_all_ = true;               // no moment was dropped since stand_at
};

}  // namespace weft::examples
