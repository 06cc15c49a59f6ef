// ResNet50 as its trainer uses it, in three ways: shards on workers, shards on threads, and
// unsplit.
//
// All three divide a batch into micro-batches and give the same gradients. These are the gradients
// of the mean loss, where each micro-batch is normalised by itself.
//
// Thread safety: an object belongs to one thread. Blocking: forward, train, trace, backward, and
// the functions that run something. Errors: RpcError, std::invalid_argument (a batch that does not
// divide; more shards than layers), and those of LibTorch.
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

// Maps the scores [n, classes] of pictures to a mean over the pictures.
using Loss = std::function<at::Tensor(const at::Tensor& scores, const at::Tensor& labels)>;

// The loss of the tutorial: the squared distance to 1 at the label and to 0 elsewhere.
at::Tensor squared_error(const at::Tensor& scores, const at::Tensor& labels);

// Divides a batch into `micro_batches` parts of equal size. std::invalid_argument names both
// numbers.
std::vector<Pictures> split(const Pictures& batch, int64_t micro_batches);

// The first layer of each shard, and 18 at the end.
using Cuts = std::vector<int64_t>;
// Parses "6" or "4,9,14". std::invalid_argument: not in order, or more shards than layers.
Cuts parse_cuts(const std::string& text);

// Shard i lives on workers[i]. The default timeout of the workers must be longer than a step,
// because the call for the last micro-batch waits for all others.
class RemoteResNet50 {
 public:
  RemoteResNet50(const std::vector<std::string>& workers, const Cuts& cuts, int64_t classes,
                 uint64_t seed);

  // Returns the scores of a whole batch. It sends all micro-batches at once.
  at::Tensor forward(const Pictures& batch, int64_t micro_batches) const;

  std::vector<RRef<ParameterSet>> parameters() const;
  void train(bool on) const;
  // Starts or stops recording. Returns the recorded spans of each shard.
  std::vector<std::vector<Span>> trace(bool on) const;
  const std::vector<RRef<ResNetShard>>& shards() const { return shards_; }

 private:
  std::vector<RRef<ResNetShard>> shards_;
};

// Runs forward, backward across the workers, and a step of each worker's weights. Returns the loss.
double train_step(const RemoteResNet50& model, DistributedOptimizerBase& optimizer,
                  const Pictures& batch, int64_t micro_batches, const Loss& loss);

// Returns parse_cuts(text), with one shard for each worker. For "auto" it makes the slowest shard
// as fast as possible. `micro_batch` must have the size used later, because it decides the cost of
// a layer.
Cuts cuts_for(const std::string& text, const std::vector<std::string>& workers,
              const Pictures& micro_batch, int64_t classes, double seconds);
// Returns the seconds of each layer while all workers are busy. Each worker profiles the whole
// model.
std::vector<double> profile_layers(const std::vector<std::string>& workers, const Pictures& sample,
                                   int64_t classes, double seconds);
// Returns the time of a micro-batch in each pipeline stage. Each stage is alone on its worker,
// while the other workers measure their stages.
std::vector<StageTime> measure_stages(const std::vector<std::string>& workers, const Cuts& cuts,
                                      const Pictures& micro_batch, int64_t classes, double seconds);

// ResNet50 in one process, without calls: one thread, or one for each shard.
class LocalResNet50 {
 public:
  // {0, 18} is the unsplit model.
  LocalResNet50(const Cuts& cuts, int64_t classes, uint64_t seed);

  // Runs forward and backward. The gradients are added to `.grad`. Returns the loss.
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
