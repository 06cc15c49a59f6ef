#include "weft/examples/pipeline_resnet50/pipeline.h"

#include <stdexcept>
#include <utility>

#include "absl/strings/str_cat.h"
#include "weft/async/future.h"
#include "weft/dist_autograd/context.h"

namespace weft::examples {

at::Tensor squared_error(const at::Tensor& scores, const at::Tensor& labels) {
  return torch::mse_loss(scores, torch::one_hot(labels, scores.size(1)).to(scores.dtype()));
}

std::vector<Pictures> split(const Pictures& batch, int64_t micro_batches) {
  const int64_t size = batch.images.size(0);
  if (micro_batches < 1 || size % micro_batches != 0) {
    throw std::invalid_argument(absl::StrCat("a batch of ", size, " pictures does not divide into ",
                                             micro_batches, " micro-batches of equal size"));
  }
  const int64_t each = size / micro_batches;
  std::vector<Pictures> parts;
  for (int64_t begin = 0; begin < size; begin += each) {
    parts.push_back({batch.images.narrow(0, begin, each), batch.labels.narrow(0, begin, each)});
  }
  return parts;
}

namespace {

std::vector<RRef<ResNetShard>> make_shards(const std::vector<std::string>& workers,
                                           const Cuts& cuts, int64_t classes, uint64_t seed) {
  if (workers.size() + 1 != cuts.size()) {
    throw std::invalid_argument(absl::StrCat(cuts.size() - 1, " shards and ", workers.size(),
                                             " workers: there must be equally many"));
  }
  std::vector<RRef<ResNetShard>> shards;
  for (size_t i = 0; i < workers.size(); ++i) {
    shards.push_back(remote<ResNetShard>(workers[i], cuts[i], cuts[i + 1], classes, seed));
  }
  return shards;
}

}  // namespace

RemoteResNet50::RemoteResNet50(const std::vector<std::string>& workers, const Cuts& cuts,
                               int64_t classes, uint64_t seed)
    : shards_(make_shards(workers, cuts, classes, seed)) {}

at::Tensor RemoteResNet50::forward(const Pictures& batch, int64_t micro_batches) const {
  std::vector<Future<at::Tensor>> scores;
  int64_t number = 0;
  for (const Pictures& part : split(batch, micro_batches)) {
    RRef<at::Tensor> x = make_rref(part.images);
    for (size_t i = 0; i + 1 < shards_.size(); ++i) {
      x = shards_[i].remote(&ResNetShard::forward, x, number);
    }
    scores.push_back(shards_.back().rpc_async(&ResNetShard::forward, x, number++));
  }
  return torch::cat(collect_all(std::move(scores)).wait());
}

std::vector<RRef<ParameterSet>> RemoteResNet50::parameters() const {
  std::vector<RRef<ParameterSet>> sets;
  for (const auto& shard : shards_) sets.push_back(shard.remote(&ResNetShard::parameters));
  return sets;
}

void RemoteResNet50::train(bool on) const {
  for (const auto& shard : shards_) shard.rpc_sync(&ResNetShard::train, on);
}

std::vector<std::vector<Span>> RemoteResNet50::trace(bool on) const {
  std::vector<std::vector<Span>> spans;
  for (const auto& shard : shards_) spans.push_back(shard.rpc_sync(&ResNetShard::trace, on));
  return spans;
}

double train_step(const RemoteResNet50& model, DistributedOptimizerBase& optimizer,
                  const Pictures& batch, int64_t micro_batches, const Loss& loss_of) {
  const dist_autograd::Context context;
  const at::Tensor loss = loss_of(model.forward(batch, micro_batches), batch.labels);
  context.backward({loss});
  optimizer.step(context);
  return loss.item<double>();
}

}  // namespace weft::examples
