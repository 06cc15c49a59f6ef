// ResNet50 in shards on several workers, in micro-batches. It follows PyTorch's tutorial
// "Distributed Pipeline Parallelism Using RPC".
//
//   weft_launch -n 3 -- pipeline_resnet50                  (or torchrun --no-python)
//
// Rank 0 is the master. It gives the first shard a reference to each micro-batch. A shard fetches
// its input and keeps its output, and the last shard returns the scores to the master. The backward
// pass goes back the same way, micro-batch by micro-batch, and each worker updates its own weights.
// By default the master times steps on generated pictures of the tutorial's size. It tries several
// numbers of micro-batches, and compares with the unsplit model and with one that has a thread for
// each shard. At the end it prints
//
//   best: 6 micro-batches, 4.82 s a step, 95 % of the ideal, 1.51 times as fast as unsplit
//
// With --input fashion-mnist it learns to classify clothes. README.md has the table and the
// picture.
#include <algorithm>
#include <chrono>
#include <iostream>
#include <stdexcept>
#include <string>
#include <vector>

#include <CLI/CLI.hpp>
#include <torch/torch.h>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "weft/ddp/distributed_sampler.h"
#include "weft/dist_optim/distributed_optimizer.h"
#include "weft/examples/pipeline_resnet50/pipeline.h"
#include "weft/examples/pipeline_resnet50/sweep.h"
#include "weft/examples/support/command_line.h"
#include "weft/examples/support/fashion_mnist.h"
#include "weft/examples/support/must.h"
#include "weft/worker/run_main.h"
#include "weft/worker/worker.h"

namespace weft::examples {

struct Options {
  SweepOptions job;
  std::string input = "generated";
  std::string data = kFashionMnistFolder;
  int64_t batch = 120;
  int64_t size = 128;
  int64_t tested = 2000;
};

// Enlarges grey 28 x 28 pictures to three equal channels of size x size.
Pictures resized(const Batch& batch, int64_t size) {
  const at::Tensor large = torch::upsample_bilinear2d(batch.images, {size, size}, false);
  return {large.expand({-1, 3, -1, -1}).contiguous(), batch.labels};
}

void learn_clothes(const Options& options) {
  const SweepOptions& job = options.job;
  const FashionMnist data = must(load_fashion_mnist(options.data));
  if (job.classes < kFashionMnistClasses || job.micro_batches.size() != 1 ||
      options.batch > data.train.size()) {
    throw std::invalid_argument(absl::StrCat("to learn clothes takes ", kFashionMnistClasses,
                                             " classes at least, one number of "
                                             "micro-batches, and a batch of ",
                                             data.train.size(), " pictures at most"));
  }
  const auto batch = static_cast<size_t>(options.batch);
  DistributedSampler sampler(static_cast<size_t>(data.train.size()), {.seed = job.seed});
  const auto next = [&] {
    auto indices = sampler.next(batch);
    if (!indices || indices->size() < batch) {  // a smaller last batch of an epoch is left out
      sampler.set_epoch(sampler.epoch() + 1);
      indices = sampler.next(batch);
    }
    return resized(make_batch(data.train, *indices), options.size);
  };
  const int64_t parts = job.micro_batches.front();
  const RemoteResNet50 model(
      job.workers,
      cuts_for(job.cuts, job.workers, split(next(), parts).front(), job.classes, job.seconds),
      job.classes, job.seed);
  DistributedOptimizer<torch::optim::Adam> optimizer(model.parameters(),
                                                     torch::optim::AdamOptions(job.learning_rate));
  const Loss cross_entropy = [](const at::Tensor& scores, const at::Tensor& labels) {
    return torch::nn::functional::cross_entropy(scores, labels);
  };
  for (int64_t i = 1; i <= job.steps; ++i) {
    const double loss = train_step(model, optimizer, next(), parts, cross_entropy);
    if (i % 10 == 0 || i == 1 || i == job.steps) {
      std::cout << absl::StreamFormat("step %d, loss %.3f\n", i, loss) << std::flush;
    }
  }
  model.train(false);
  const torch::NoGradGuard no_grad;
  constexpr int64_t kTogether = 100;
  const int64_t tested = std::min(options.tested, data.test.size());
  int64_t correct = 0;
  for (int64_t i = 0; i < tested; i += kTogether) {
    const int64_t end = std::min(i + kTogether, tested);
    const Pictures test = resized(make_batch(data.test, i, end), options.size);
    correct += model.forward(test, 1).argmax(1).eq(test.labels).sum().item<int64_t>();
  }
  std::cout << absl::StreamFormat("accuracy %.3f on %d test pictures after %d steps of %d\n",
                                  static_cast<double>(correct) / static_cast<double>(tested),
                                  tested, job.steps, options.batch)
            << std::flush;
}

int run(int argc, char** argv) {
  Options options;
  SweepOptions& job = options.job;
  CLI::App app("ResNet50 in shards on several workers, in micro-batches");
  app.add_option("--input", options.input, "generated (a sweep) or fashion-mnist (it learns)")
      ->check(CLI::IsMember({"generated", "fashion-mnist"}))
      ->capture_default_str();
  const CLI::Option* parts =
      app.add_option("--micro-batches", job.micro_batches, "numbers of them, commas between")
          ->delimiter(',')
          ->check(CLI::Range(1, 1'000'000));
  app.add_option("--cuts", job.cuts,
                 "first layers of all shards but the first (4,9,14), or auto: by measured cost")
      ->capture_default_str();
  app.add_option("--data", options.data, "folder of Fashion-MNIST")->capture_default_str();
  app.add_option("--picture", job.picture, "write throughput and time line to this PNG file");
  const auto number = [&app](const char* name, int64_t& value, const char* about) {
    return app.add_option(name, value, about)->check(CLI::Range(1, 1'000'000));
  };
  const CLI::Option* batch = number("--batch", options.batch, "pictures of a step");
  const CLI::Option* side = number("--size", options.size, "their width and height");
  const CLI::Option* classes = number("--classes", job.classes, "that the model tells apart");
  const CLI::Option* steps = number("--steps", job.steps, "with each number; of learning");
  number("--tested", options.tested, "pictures of the test, after learning");
  app.add_option("--seconds", job.seconds, "for measuring stages and layers, each time")
      ->check(CLI::Range(0.0, 300.0))
      ->capture_default_str();
  const CLI::Option* rate = app.add_option("--lr", job.learning_rate, "of SGD; of Adam to learn");
  app.add_option("--seed", job.seed)->capture_default_str();
  if (const auto end = parse_command_line(app, argc, argv)) return end->print();
  const bool learns = options.input == "fashion-mnist";
  if (learns && parts->empty()) job.micro_batches = {4};
  if (learns && batch->empty()) options.batch = 64;
  if (learns && side->empty()) options.size = 32;
  if (learns && classes->empty()) job.classes = kFashionMnistClasses;
  if (learns && steps->empty()) job.steps = 100;
  if (learns && rate->empty()) job.learning_rate = 1e-3;

  WorkerOptions worker_options = WorkerOptions::from_env();
  const uint32_t size = worker_options.place.world_size;
  const bool leads = worker_options.place.rank == 0;
  if (size < 2) {
    throw std::runtime_error(
        "the job is a master and a worker for each shard: start them with weft_launch -n 3 -- "
        "pipeline_resnet50");
  }
  for (uint32_t rank = 1; rank < size; ++rank) job.workers.push_back(absl::StrCat("worker", rank));
  worker_options.name = leads ? "master" : absl::StrCat("worker", worker_options.place.rank);
  worker_options.threads = 1;                                 // a stage does one thing at a time
  worker_options.default_timeout = std::chrono::minutes(10);  // a step may take so long
  torch::manual_seed(job.seed);
  Worker worker = Worker::join(std::move(worker_options));
  at::set_num_threads(1);  // whatever OMP_NUM_THREADS says
  if (leads && learns) {
    learn_clothes(options);
  } else if (leads) {
    sweep(job, {torch::randn({options.batch, 3, options.size, options.size}),
                torch::randint(job.classes, {options.batch})});
  }
  worker.shutdown();
  return 0;
}

}  // namespace weft::examples

int main(int argc, char** argv) { return weft::run_main(argc, argv, weft::examples::run); }
