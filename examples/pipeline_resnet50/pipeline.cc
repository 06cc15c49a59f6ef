#include "weft/examples/pipeline_resnet50/pipeline.h"

#include <atomic>
#include <stdexcept>
#include <utility>

#include <ATen/Parallel.h>

#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_split.h"
#include "weft/async/future.h"
#include "weft/base/rpc_error.h"
#include "weft/dist_autograd/context.h"
#include "weft/examples/pipeline_resnet50/partition.h"

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

Cuts parse_cuts(const std::string& text) {
  Cuts cuts{0};
  for (const absl::string_view place : absl::StrSplit(text, ',')) {
    if (int64_t cut; absl::SimpleAtoi(place, &cut)) {
      cuts.push_back(cut);
    } else {
      throw std::invalid_argument(
          absl::StrCat("'", place, "' in the cuts '", text, "' is no number of a layer"));
    }
  }
  cuts.push_back(kResNet50Layers);
  for (size_t i = 1; i < cuts.size(); ++i) {
    if (cuts[i - 1] < cuts[i]) continue;
    throw std::invalid_argument(absl::StrCat("cuts '", text, "': each shard needs a layer of the ",
                                             kResNet50Layers, ", so they must grow from 1 to ",
                                             kResNet50Layers - 1));
  }
  return cuts;
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

Cuts cuts_for(const std::string& text, const std::vector<std::string>& workers,
              const Pictures& micro_batch, int64_t classes, double seconds) {
  Cuts cuts;
  if (text == "auto") {
    cut_by_cost(std::vector<double>(kResNet50Layers, 1), workers.size());  // refuses too many
    const auto costs = profile_layers(workers, micro_batch, classes, seconds);
    for (const size_t cut : cut_by_cost(costs, workers.size())) {
      cuts.push_back(static_cast<int64_t>(cut));
    }
    return cuts;
  }
  cuts = parse_cuts(text);
  if (cuts.size() == workers.size() + 1) return cuts;
  throw std::invalid_argument(absl::StrCat("cuts '", text, "' make ", cuts.size() - 1,
                                           " shards, for ", workers.size(), " workers"));
}

std::vector<double> profile_layers(const std::vector<std::string>& workers, const Pictures& sample,
                                   int64_t classes, double seconds) {
  std::vector<Future<std::vector<double>>> running;
  for (const std::string& worker : workers) {
    running.push_back(remote<ResNetShard>(worker, 0, kResNet50Layers, classes, 1)
                          .rpc_async(&ResNetShard::profile, sample.images, seconds));
  }
  std::vector<double> means(kResNet50Layers, 0.0);
  for (const std::vector<double>& one : collect_all(std::move(running)).wait()) {
    for (size_t i = 0; i < one.size(); ++i) {
      means[i] += one[i] / static_cast<double>(workers.size());
    }
  }
  return means;
}

std::vector<StageTime> measure_stages(const std::vector<std::string>& workers, const Cuts& cuts,
                                      const Pictures& micro_batch, int64_t classes,
                                      double seconds) {
  const auto shards = make_shards(workers, cuts, classes, 1);
  std::vector<at::Tensor> inputs{micro_batch.images};  // inputs[i] is the input of shard i
  for (size_t i = 0; i + 1 < shards.size(); ++i) {
    inputs.push_back(shards[i].rpc_sync(&ResNetShard::forward, make_rref(inputs[i]), 0).detach());
  }
  std::vector<Future<StageTime>> running;
  for (size_t i = 0; i < shards.size(); ++i) {
    running.push_back(shards[i].rpc_async(&ResNetShard::measure, inputs[i], seconds));
  }
  return collect_all(std::move(running)).wait();
}

// The state of one step.
struct LocalResNet50::Pass {
  Pass(std::vector<Pictures> parts, size_t stages, Loss loss)
      : pictures(std::move(parts)), loss(std::move(loss)), left(pictures.size()) {
    inputs.resize(stages, std::vector<at::Tensor>(pictures.size()));
    outputs = inputs;
  }
  // Runs code that may throw. The first error stops the step.
  template <class Code>
  void guarded(const Code& code) {
    try {
      if (!failed) code();
    } catch (...) {
      if (!failed.exchange(true)) done.set(std::current_exception());
    }
  }
  void one_is_through() {
    if (--left == 0) done.set(std::exception_ptr());
  }

  const std::vector<Pictures> pictures;
  const Loss loss;
  std::vector<std::vector<at::Tensor>> inputs, outputs;  // [stage][micro-batch]
  double total_loss = 0;                                 // only the last stage's thread adds to it
  std::atomic<size_t> left;
  std::atomic<bool> failed{false};
  Promise<std::exception_ptr> done{nullptr};
};

LocalResNet50::LocalResNet50(const Cuts& cuts, int64_t classes, uint64_t seed) {
  for (size_t i = 0; i + 1 < cuts.size(); ++i) {
    parts_.push_back(std::make_shared<ResNet50Part>(cuts[i], cuts[i + 1], classes, seed));
  }
  if (parts_.size() < 2) return;
  for (size_t i = 0; i < parts_.size(); ++i) {
    threads_.push_back(std::make_unique<SerialThread>());
    threads_.back()->run([] { at::set_num_threads(1); });
  }
}

double LocalResNet50::backward(const Pictures& batch, int64_t micro_batches, const Loss& loss) {
  const std::vector<Pictures> parts = split(batch, micro_batches);
  if (parts_.size() == 1) {
    double total = 0;
    for (const Pictures& part : parts) {
      const at::Tensor share =
          loss(parts_[0]->forward(part.images), part.labels) / static_cast<double>(micro_batches);
      share.backward();
      total += share.item<double>();
    }
    return total;
  }
  const auto pass = std::make_shared<Pass>(parts, parts_.size(), loss);
  for (size_t i = 0; i < parts.size(); ++i) forward_through(pass, 0, i, parts[i].images);
  const std::exception_ptr error = pass->done.future().wait();
  if (error == nullptr) return pass->total_loss;
  // Tasks that have not begun do nothing now. Wait for those that run.
  for (const auto& thread : threads_) {
    Promise<void> idle(nullptr);
    thread->run([&idle] { idle.set_value(); });
    idle.future().wait();
  }
  std::rethrow_exception(error);
}

// Each thread runs tasks in the order in which they arrive. So the first stage runs all forwards
// before its first backward, and the last one runs each backward right after its forward.
void LocalResNet50::forward_through(const std::shared_ptr<Pass>& pass, size_t part,
                                    size_t micro_batch, const at::Tensor& x) {
  threads_[part]->run([=, this] {
    pass->guarded([&] {
      const at::Tensor input = x.detach().requires_grad_(part > 0);
      const at::Tensor output = parts_[part]->forward(input);
      pass->inputs[part][micro_batch] = input;
      if (part + 1 < parts_.size()) {
        pass->outputs[part][micro_batch] = output;
        forward_through(pass, part + 1, micro_batch, output);
        return;
      }
      const at::Tensor share = pass->loss(output, pass->pictures[micro_batch].labels) /
                               static_cast<double>(pass->pictures.size());
      share.backward();
      pass->total_loss += share.item<double>();
      backward_through(pass, part - 1, micro_batch, input.grad());
    });
  });
}

void LocalResNet50::backward_through(const std::shared_ptr<Pass>& pass, size_t part,
                                     size_t micro_batch, const at::Tensor& gradient) {
  threads_[part]->run([=, this] {
    pass->guarded([&] {
      pass->outputs[part][micro_batch].backward(gradient);
      pass->outputs[part][micro_batch].reset();  // frees the memory of its graph
      if (part > 0) {
        backward_through(pass, part - 1, micro_batch, pass->inputs[part][micro_batch].grad());
      } else {
        pass->one_is_through();
      }
    });
  });
}

std::vector<at::Tensor> LocalResNet50::parameters() const {
  std::vector<at::Tensor> parameters;
  for (const auto& part : parts_) {
    for (const at::Tensor& one : part->parameters()) parameters.push_back(one);
  }
  return parameters;
}

}  // namespace weft::examples
