// ResNet50 as its trainer sees it, in three ways: shards on workers, shards on threads, unsplit.
//
// All of them take a batch apart into micro-batches, and give the same gradients: those of the mean
// loss, with each micro-batch normalised by itself.
//
// Thread safety: an object belongs to one thread. Blocking: forward, train, trace, backward, and
// the functions that run something. Errors: RpcError, std::invalid_argument (a batch that does not
// divide; more shards than layers), and what LibTorch says.
#pragma once

#include <cstdint>
#include <functional>
#include <memory>
#include <string>
#include <vector>

#include <torch/torch.h>

#include "weft/async/serial_thread.h"
#include "weft/dist_optim/distributed_optimizer.h"
#include "weft/examples/pipeline_resnet50/shard.h"

namespace weft::examples {

struct Pictures {
  at::Tensor images;  // float [n, 3, height, width]
  at::Tensor labels;  // int64 [n]
};

// Of the scores [n, classes] of pictures: a mean over the pictures.
using Loss = std::function<at::Tensor(const at::Tensor& scores, const at::Tensor& labels)>;

// As in the tutorial: squared distance to a 1 at the label and 0 elsewhere.
at::Tensor squared_error(const at::Tensor& scores, const at::Tensor& labels);

// A batch in `micro_batches` parts of equal size. std::invalid_argument names both numbers.
std::vector<Pictures> split(const Pictures& batch, int64_t micro_batches);

// The first layers of the shards, and 18 behind them.
using Cuts = std::vector<int64_t>;
// "6" or "4,9,14". std::invalid_argument: not in order, or more shards than there are layers.
Cuts parse_cuts(const std::string& text);

// Shard i is on the i-th of the workers. The workers' default timeout must be longer than a step:
// the call about the last micro-batch waits for all others.
class RemoteResNet50 {
 public:
  RemoteResNet50(const std::vector<std::string>& workers, const Cuts& cuts, int64_t classes,
                 uint64_t seed);

  // The scores of a whole batch: all micro-batches are on their way at once.
  at::Tensor forward(const Pictures& batch, int64_t micro_batches) const;

  std::vector<RRef<ParameterSet>> parameters() const;
  void train(bool on) const;
  // Of each shard.
  std::vector<std::vector<Span>> trace(bool on) const;
  const std::vector<RRef<ResNetShard>>& shards() const { return shards_; }

 private:
  std::vector<RRef<ResNetShard>> shards_;
};

// Forward, backward across the workers, and a step of each worker's weights. Returns the loss.
double train_step(const RemoteResNet50& model, DistributedOptimizerBase& optimizer,
                  const Pictures& batch, int64_t micro_batches, const Loss& loss);

// As parse_cuts says, one shard for each worker; or, if the text is "auto", so that the slowest
// shard is as fast as it can be. What a layer costs depends on how many pictures it gets at once.
Cuts cuts_for(const std::string& text, const std::vector<std::string>& workers,
              const Pictures& micro_batch, int64_t classes, double seconds);
// Of each layer what it takes while all workers are busy: each profiles the whole model. Seconds.
std::vector<double> profile_layers(const std::vector<std::string>& workers, const Pictures& sample,
                                   int64_t classes, double seconds);
// Of each stage of such a pipeline what a micro-batch takes, alone on its worker, while the other
// workers do the same with theirs.
std::vector<StageTime> measure_stages(const std::vector<std::string>& workers, const Cuts& cuts,
                                      const Pictures& micro_batch, int64_t classes, double seconds);

// One thread, or one for each shard; no calls.
class LocalResNet50 {
 public:
  // {0, 18} is the unsplit model.
  LocalResNet50(const Cuts& cuts, int64_t classes, uint64_t seed);

  // Forward and backward: leaves the gradients in `.grad`, where they add up. Returns the loss.
  double backward(const Pictures& batch, int64_t micro_batches, const Loss& loss);
  std::vector<at::Tensor> parameters() const;
  const std::vector<std::shared_ptr<ResNet50Part>>& parts() const { return parts_; }

 private:
  struct Pass;
  void forward_through(const std::shared_ptr<Pass>& pass, size_t part, size_t micro_batch,
                       const at::Tensor& x);
  void backward_through(const std::shared_ptr<Pass>& pass, size_t part, size_t micro_batch,
                        const at::Tensor& gradient);

  std::vector<std::shared_ptr<ResNet50Part>> parts_;
  std::vector<std::unique_ptr<SerialThread>> threads_;  // none if unsplit
};

}  // namespace weft::examples
