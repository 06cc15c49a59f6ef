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

  // Learns from one batch and returns its loss. `progress`, from 0 to 1, is how much of the run is
  // done: the learning rate depends on it. `then`: where the job stands after it.
  double step(const Batch& batch, double progress, const Position& then = {});
  uint64_t number() const { return step_; }  // of the last step, over all lives of this trainer

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

  // ---- with a server that keeps itself (server.h)

  // The server has come back, `step` was refused: finds it again, and goes back to the last step
  // that it still has, this trainer's layers included; the next step is the one after number().
  // Where the job stood then. A step that the server has and whose answer was lost with it counts
  // there alone. RpcError, DataLoss: that was too long ago.
  Position reconnect();
  // This trainer was started again: goes on behind the last step that its earlier life has on the
  // server. Unavailable: one of its steps is still undecided; again soon.
  void come_back();
  // The server may go back to here, and if it goes back further, this trainer does not: what was
  // before, it does not know.
  void stand_at(const Position& position);
  // The earliest place that it may go back to.
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
  const WorkerScope scope_;  // this thread works for it
  Classifier classifier_;
  FeatureLayers layers_;
  const std::shared_ptr<ParameterSet> own_;  // shared with the optimizer's shard here
  const double learning_rate_;
  StepLedger ledger_;
  std::optional<Optimizer> optimizer_;
  uint64_t step_ = 0;
  std::map<uint64_t, Moment> moments_;  // of steps that the server may go back to
  Position expected_;                   // after the step under way
  bool knows_all_ = true;               // no moment before the earliest one was forgotten
};

}  // namespace weft::examples
