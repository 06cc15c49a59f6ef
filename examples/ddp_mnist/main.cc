// Several ranks learn Fashion-MNIST together. Each has a copy of one network and a shard of the
// pictures, and DistributedDataParallel averages their gradients.
//
//   weft_launch -n 2 -- ddp_mnist                          (or torchrun --no-python)
//
// Rank 0 prints:
//
//   epoch 1 of 2: loss 0.5830, test accuracy 0.8535, 2.6 s
//   epoch 2 of 2: loss 0.3271, test accuracy 0.8812, 5.7 s
//
// README.md shows that one process which takes the pictures of both ranks has the same losses, and
// how to stop the job and to resume it.
#include <algorithm>
#include <chrono>
#include <filesystem>
#include <iostream>
#include <memory>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include <torch/csrc/distributed/c10d/HashStore.hpp>
#include <torch/torch.h>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "weft/comm/process_group.h"
#include "weft/ddp/checkpoint.h"
#include "weft/ddp/distributed_data_parallel.h"
#include "weft/ddp/distributed_sampler.h"
#include "weft/examples/ddp_mnist/loss_curve.h"
#include "weft/examples/ddp_mnist/net.h"
#include "weft/examples/ddp_mnist/options.h"
#include "weft/examples/support/fashion_mnist.h"
#include "weft/examples/support/must.h"
#include "weft/launcher/launch_environment.h"
#include "weft/worker/run_main.h"
#include "weft/worker/stop_request.h"

namespace weft::examples {
namespace {

// Joins the ranks that a launcher started. With --whole-batch the group is this process alone.
std::shared_ptr<ProcessGroup> join_ranks(const DdpMnistOptions& options) {
  if (options.whole_batch == 0) return init_process_group();
  const absl::StatusOr<LaunchEnvironment> launched = read_launch_environment();
  if (launched.ok() && launched->world_size > 1) {
    must(absl::InvalidArgumentError(absl::StrCat(
        "--whole-batch is for one process, and WORLD_SIZE is ", launched->world_size)));
  }
  return init_process_group(
      {.rank = 0, .world_size = 1, .store = c10::make_intrusive<c10d::HashStore>()});
}

class Training {
 public:
  explicit Training(const DdpMnistOptions& options)
      : options_(options),
        type_(options.double_numbers ? at::kDouble : at::kFloat),
        train_(must(load_fashion_mnist_part(options.data, /*train=*/true, options.limit))),
        test_(must(load_fashion_mnist_part(options.data, /*train=*/false, options.limit))),
        group_(join_ranks(options)),
        ranks_(std::max(options.whole_batch, group_->size())) {
    for (int rank = 0; rank < ranks_; ++rank) {
      if (options.whole_batch == 0 && rank != group_->rank()) continue;
      samplers_.emplace_back(
          train_.size(),
          DistributedSamplerOptions{.num_replicas = ranks_, .rank = rank, .seed = options.seed});
    }
    torch::manual_seed(options.seed);
    net_ = Net();
    net_->to(type_);
    if (options.whole_batch == 0) ddp_.emplace(net_, group_);  // otherwise the bare net is trained
    optimizer_.emplace(net_->parameters(), torch::optim::SGDOptions(options.lr).momentum(0.9));
    if (!options.resume) return;
    at_ = load_checkpoint(*group_, options.checkpoint, *net_, &*optimizer_);
    if (std::filesystem::exists(options.losses)) must(curve_.read(options.losses, at_.step));
  }

  int run() {
    const auto begun = std::chrono::steady_clock::now();
    if (at_.epoch >= options_.epochs && group_->rank() == 0) {
      std::cout << options_.checkpoint << " stands after epoch " << at_.epoch << std::endl;
    }
    while (at_.epoch < options_.epochs) {
      const double loss = train_epoch();
      if (!options_.checkpoint.empty()) {
        save_checkpoint(*group_, options_.checkpoint, *net_, &*optimizer_, at_);
      }
      if (group_->rank() == 0 && !options_.losses.empty()) must(curve_.write(options_.losses));
      if (stopped_ && at_.epoch < options_.epochs) {
        if (group_->rank() == 0) std::cout << "stopped after step " << at_.step << std::endl;
        return kStoppedExitCode;
      }
      const double accuracy = test_accuracy();
      if (group_->rank() != 0) continue;
      const std::chrono::duration<double> passed = std::chrono::steady_clock::now() - begun;
      std::cout << absl::StrFormat("epoch %d of %d: loss %.4f, test accuracy %.4f, %.1f s",
                                   at_.epoch, options_.epochs, loss, accuracy, passed.count())
                << std::endl;
    }
    if (group_->rank() == 0 && !options_.compare.empty()) {
      std::cout << must(curve_.compare(options_.compare)) << std::endl;
    }
    return 0;
  }

 private:
  // Trains to the end of the epoch, or until a rank is asked to stop. Returns the mean loss over
  // these steps and all ranks.
  double train_epoch() {
    for (DistributedSampler& sampler : samplers_) {
      sampler.set_epoch(static_cast<uint64_t>(at_.epoch));
      if (at_.sampler_position == 0) continue;
      sampler.seek(static_cast<uint64_t>(at_.epoch), static_cast<size_t>(at_.sampler_position));
    }
    std::vector<at::Tensor> losses;
    while (!stopped_) {
      const std::vector<size_t> indices = next_indices();
      if (indices.empty()) break;
      const Batch batch = make_batch(train_, indices);
      const at::Tensor images = batch.images.to(type_);
      optimizer_->zero_grad();
      const at::Tensor scores = ddp_ ? ddp_->forward(images) : net_->forward(images);
      const at::Tensor loss = at::cross_entropy_loss(scores, batch.labels);
      loss.backward();
      optimizer_->step();
      losses.push_back(loss.detach());
      stopped_ = agree_to_stop();
    }
    // One all_reduce for all steps costs less than one per step.
    const at::Tensor means = at::stack(losses).to(at::kDouble);
    group_->all_reduce(means);
    means.div_(group_->size());
    for (int64_t i = 0; i < means.size(0); ++i) curve_.add(++at_.step, means[i].item<double>());
    const bool at_end = samplers_.front().position() == samplers_.front().size();
    at_.sampler_position = at_end ? 0 : static_cast<int64_t>(samplers_.front().position());
    if (at_end) ++at_.epoch;
    return means.mean().item<double>();
  }

  // Whether a rank was asked to stop. All must leave after the same step.
  bool agree_to_stop() {
    const at::Tensor asked = at::scalar_tensor(stop_requested() ? 1 : 0, at::kInt);
    group_->all_reduce(asked, ProcessGroup::Op::MAX);
    return asked.item<int>() != 0;
  }

  // For the next step, of all ranks that this process stands for. Empty at the end of an epoch.
  std::vector<size_t> next_indices() {
    std::vector<size_t> indices;
    for (DistributedSampler& sampler : samplers_) {
      const auto some = sampler.next(static_cast<size_t>(options_.batch));
      if (some) indices.insert(indices.end(), some->begin(), some->end());
    }
    return indices;
  }

  // Each rank evaluates a shard of the test pictures.
  double test_accuracy() {
    const torch::NoGradGuard no_grad;
    constexpr int64_t kBatch = 500;
    int64_t begin = test_.size() * group_->rank() / group_->size();
    const int64_t last = test_.size() * (group_->rank() + 1) / group_->size();
    at::Tensor right = at::zeros({}, at::kLong);
    for (; begin < last; begin += kBatch) {
      const Batch batch = make_batch(test_, begin, std::min(last, begin + kBatch));
      right += net_->forward(batch.images.to(type_)).argmax(1).eq(batch.labels).sum();
    }
    group_->all_reduce(right);
    return right.item<double>() / static_cast<double>(test_.size());
  }

  const DdpMnistOptions options_;
  const at::ScalarType type_;
  const LabelledImages train_;
  const LabelledImages test_;
  const std::shared_ptr<ProcessGroup> group_;
  const int ranks_;                           // ranks that share the pictures of a step
  std::vector<DistributedSampler> samplers_;  // one for each rank that this process stands for
  Net net_ = nullptr;
  std::optional<DistributedDataParallel<NetImpl>> ddp_;
  std::optional<torch::optim::SGD> optimizer_;
  CheckpointProgress at_;
  bool stopped_ = false;  // a launcher asked the ranks to stop
  LossCurve curve_;
};

int run(int argc, char** argv) {
  const DdpMnistCommandLine command = parse_ddp_mnist_options(argc, argv);
  if (!command.options) return command.print();
  at::set_num_threads(1);  // the ranks share the processors
  return Training(*command.options).run();
}

}  // namespace
}  // namespace weft::examples

int main(int argc, char** argv) { return weft::run_main(argc, argv, weft::examples::run); }
