// ResNet50 in shards on workers, as its trainer uses it.
//
// It divides a batch into micro-batches. The gradients are those of the mean loss, where each
// micro-batch is normalised by itself.
//
// Thread safety: an object belongs to one thread.
// Blocking: forward, train, trace and train_step.
// Errors: RpcError, std::invalid_argument (a batch that does not divide; shards and workers that
// are not equally many), and those of LibTorch.
#pragma once

#include <cstdint>
#include <functional>
#include <string>
#include <vector>

#include <torch/torch.h>

#include "weft/dist_optim/distributed_optimizer.h"
#include "weft/examples/pipeline_resnet50/partition.h"
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

}  // namespace weft::examples
