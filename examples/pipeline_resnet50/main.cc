// ResNet50 in shards on several workers, in micro-batches: PyTorch's tutorial "Distributed Pipeline
// Parallelism Using RPC".
//
//   weft_launch -n 3 -- pipeline_resnet50                  (or torchrun --no-python)
//
// Rank 0 is the master: it sends micro-batches to the first shard, which leaves its outputs with
// itself; the last shard fetches what it needs and sends the scores. The backward pass goes the
// same way back, micro-batch by micro-batch, and each worker updates its own weights. By default on
// pictures of the tutorial's size, sweeping through numbers of micro-batches, beside the same model
// unsplit and on a thread for each shard; prints at last
//
//   best: 8 micro-batches, 10.42 s a step, 95 % of the ideal, 1.78 times as fast as unsplit
//
// --data fashion-mnist learns to tell clothes. README.md has the table and the picture.
#include <algorithm>
#include <iostream>
#include <stdexcept>
#include <string>
#include <vector>

#include <CLI/CLI.hpp>
#include <torch/torch.h>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "absl/strings/str_join.h"
#include "weft/base/atomic_file.h"
#include "weft/dist_autograd/context.h"
#include "weft/dist_optim/distributed_optimizer.h"
#include "weft/examples/pipeline_resnet50/partition.h"
#include "weft/examples/pipeline_resnet50/pipeline.h"
#include "weft/examples/pipeline_resnet50/pipeline_picture.h"
#include "weft/examples/support/command_line.h"
#include "weft/examples/support/fashion_mnist.h"
#include "weft/examples/support/must.h"
#include "weft/examples/support/sharded_sampler.h"
#include "weft/worker/run_main.h"
#include "weft/worker/worker.h"

namespace weft::examples {

struct Options {
  std::vector<int64_t> micro_batches{1, 2, 4, 8, 12, 24};
  std::string cuts = "auto";
  std::string data = "generated";
  std::string folder = kFashionMnistFolder;
  std::string picture;
  int64_t batch = 120;
  int64_t size = 128;
  int64_t classes = 1000;
  int64_t steps = 3;
  int64_t tested = 2000;
  double seconds = 2;
  double learning_rate = 0.05;
  uint64_t seed = 1;
  std::vector<std::string> workers;
};

double median(std::vector<double> values) {
  std::sort(values.begin(), values.end());
  return values[values.size() / 2];
}

Pictures generate(const Options& options) {
  return {torch::randn({options.batch, 3, options.size, options.size}),
          torch::randint(options.classes, {options.batch})};
}

// Where to cut: as told, or so that the slowest shard is as fast as can be. What a layer costs
// depends on how many pictures it gets at once.
Cuts choose_cuts(const Options& options, const Pictures& micro_batch) {
  const size_t shards = options.workers.size();
  if (options.cuts != "auto") {
    const Cuts cuts = parse_cuts(options.cuts);
    if (cuts.size() == shards + 1) return cuts;
    throw std::invalid_argument(absl::StrCat("cuts '", options.cuts, "' make ", cuts.size() - 1,
                                             " shards, for ", shards, " workers"));
  }
  cut_by_cost(std::vector<double>(kResNet50Layers, 1), shards);  // throws if there are too many
  const auto costs = profile_layers(options.workers, micro_batch, options.classes, options.seconds);
  Cuts cuts;
  for (const size_t cut : cut_by_cost(costs, shards)) cuts.push_back(static_cast<int64_t>(cut));
  return cuts;
}

// One step of the distributed model; the loss.
double step(const RemoteResNet50& model, DistributedOptimizer<torch::optim::SGD>& optimizer,
            const Pictures& batch, int64_t micro_batches, const Loss& loss_of) {
  const dist_autograd::Context context;
  const at::Tensor loss = loss_of(model.forward(batch, micro_batches), batch.labels);
  context.backward({loss});
  optimizer.step(context);
  return loss.item<double>();
}

template <class Code>
double seconds_of(const Code& code) {
  const double begun = seconds_now();
  code();
  return seconds_now() - begun;
}

// So many micro-batches, in all three ways in turn.
SweepPoint measure(const Options& options, const Pictures& batch, int64_t parts) {
  const Pictures micro_batch = split(batch, parts).front();
  SweepPoint point{.micro_batches = parts, .cuts = choose_cuts(options, micro_batch)};
  const RemoteResNet50 remote_model(options.workers, point.cuts, options.classes, options.seed);
  DistributedOptimizer<torch::optim::SGD> optimizer(
      remote_model.parameters(), torch::optim::SGDOptions(options.learning_rate));
  LocalResNet50 unsplit({0, kResNet50Layers}, options.classes, options.seed);
  LocalResNet50 threads(point.cuts, options.classes, options.seed);
  const auto step_locally = [&](LocalResNet50& model) {
    torch::optim::SGD local(model.parameters(), options.learning_rate);
    model.backward(batch, parts, squared_error);
    local.step();
    local.zero_grad();
  };
  std::vector<double> ideal, unsplit_times, thread_times, times;
  for (int64_t i = -1; i < options.steps; ++i) {  // the first one warms up
    ideal.push_back(ideal_seconds(
        measure_stages(options.workers, point.cuts, micro_batch, options.classes, options.seconds),
        parts));
    unsplit_times.push_back(seconds_of([&] { step_locally(unsplit); }));
    thread_times.push_back(seconds_of([&] { step_locally(threads); }));
    remote_model.trace(true);
    times.push_back(
        seconds_of([&] { step(remote_model, optimizer, batch, parts, squared_error); }));
    point.spans = remote_model.trace(false);
  }
  for (auto* values : {&ideal, &unsplit_times, &thread_times, &times})
    values->erase(values->begin());
  point.ideal = median(ideal);
  point.unsplit = median(unsplit_times);
  point.threads = median(thread_times);
  point.seconds = median(times);
  return point;
}

void sweep(const Options& options) {
  const Pictures batch = generate(options);
  for (const int64_t parts : options.micro_batches) split(batch, parts);  // throws at once
  std::cout << absl::StreamFormat("a batch of %d, %d x %d; seconds of a step, medians of %d\n",
                                  options.batch, options.size, options.size, options.steps)
            << "micro-batches  cut at  unsplit  threads  pipeline  ideal  of ideal  speed-up"
            << std::endl;
  std::vector<SweepPoint> points;
  for (const int64_t parts : options.micro_batches) {
    points.push_back(measure(options, batch, parts));
    const SweepPoint& point = points.back();
    std::cout << absl::StreamFormat(
                     "%13d %7s %8.2f %8.2f %9.2f %6.2f %7.0f %% %9.2f\n", parts,
                     absl::StrJoin(point.cuts.begin() + 1, point.cuts.end() - 1, ","),
                     point.unsplit, point.threads, point.seconds, point.ideal,
                     100 * point.ideal / point.seconds, point.unsplit / point.seconds)
              << std::flush;
  }
  const SweepPoint& best = *std::min_element(
      points.begin(), points.end(),
      [](const SweepPoint& a, const SweepPoint& b) { return a.seconds < b.seconds; });
  std::cout
      << absl::StreamFormat(
             "best: %d micro-batches, %.2f s a step, %.0f %% of the ideal, %.2f times as fast "
             "as unsplit\n",
             best.micro_batches, best.seconds, 100 * best.ideal / best.seconds,
             best.unsplit / best.seconds)
      << std::flush;
  if (options.picture.empty()) return;
  must(write_file_atomically(
      options.picture,
      must(draw_pipeline(absl::StrCat("ResNet50 in ", options.workers.size(), " shards"), points,
                         best, options.batch))));
}

// Grey 28 x 28 as three equal channels of the wanted size.
Pictures resized(const Batch& batch, int64_t size) {
  const at::Tensor large = torch::upsample_bilinear2d(batch.images, {size, size}, false);
  return {large.expand({-1, 3, -1, -1}).contiguous(), batch.labels};
}

void learn_clothes(const Options& options) {
  const FashionMnist data = must(load_fashion_mnist(options.folder));
  const int64_t parts = options.micro_batches.front();
  ShardedSampler sampler({.size = data.train.size(), .batch = options.batch, .seed = options.seed});
  const auto next = [&] { return resized(make_batch(data.train, sampler.next()), options.size); };
  const Pictures first = next();
  const RemoteResNet50 model(options.workers, choose_cuts(options, split(first, parts).front()),
                             options.classes, options.seed);
  DistributedOptimizer<torch::optim::SGD> optimizer(
      model.parameters(), torch::optim::SGDOptions(options.learning_rate).momentum(0.9));
  const Loss loss_of = [](const at::Tensor& scores, const at::Tensor& labels) {
    return torch::nn::functional::cross_entropy(scores, labels);
  };
  for (int64_t i = 1; i <= options.steps; ++i) {
    const double loss = step(model, optimizer, next(), parts, loss_of);
    if (i % 10 == 0 || i == options.steps) {
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
                                  tested, options.steps, options.batch)
            << std::flush;
}

int run(int argc, char** argv) {
  Options options;
  CLI::App app("ResNet50 in shards on several workers, in micro-batches");
  app.add_option("--micro-batches", options.micro_batches, "numbers of them, with commas between")
      ->delimiter(',')
      ->check(CLI::Range(1, 1'000'000))
      ->capture_default_str();
  app.add_option("--cuts", options.cuts,
                 "first layers of all shards but the first (4,9,14), or auto: by measured cost")
      ->capture_default_str();
  app.add_option("--data", options.data, "generated (a sweep) or fashion-mnist (it learns)")
      ->check(CLI::IsMember({"generated", "fashion-mnist"}))
      ->capture_default_str();
  app.add_option("--folder", options.folder, "of Fashion-MNIST")->capture_default_str();
  app.add_option("--picture", options.picture, "write throughput and time line to this PNG file");
  const auto number = [&app](const char* name, int64_t& value, const char* about) {
    app.add_option(name, value, about)->check(CLI::Range(1, 1'000'000))->capture_default_str();
  };
  number("--batch", options.batch, "pictures of a step");
  number("--size", options.size, "their width and height");
  number("--classes", options.classes, "that the model tells apart");
  number("--steps", options.steps, "with each number of micro-batches; of learning");
  number("--tested", options.tested, "pictures of the test, after learning");
  app.add_option("--seconds", options.seconds, "for measuring stages and layers, each time")
      ->check(CLI::Range(0.0, 600.0))
      ->capture_default_str();
  app.add_option("--lr", options.learning_rate)->capture_default_str();
  app.add_option("--seed", options.seed)->capture_default_str();
  if (const auto end = parse_command_line(app, argc, argv)) return end->print();

  WorkerOptions worker_options = WorkerOptions::from_env();
  const uint32_t size = worker_options.place.world_size;
  const bool leads = worker_options.place.rank == 0;
  if (size < 2) {
    throw std::runtime_error(
        "the job is a master and a worker for each shard: start them with weft_launch -n 3 -- "
        "pipeline_resnet50");
  }
  for (uint32_t rank = 1; rank < size; ++rank) {
    options.workers.push_back(absl::StrCat("worker", rank));
  }
  worker_options.name = leads ? "master" : absl::StrCat("worker", worker_options.place.rank);
  worker_options.threads = 1;  // a stage does one thing at a time
  worker_options.default_timeout = std::chrono::minutes(10);
  Worker worker = Worker::join(std::move(worker_options));
  torch::manual_seed(options.seed);
  if (leads) options.data == "generated" ? sweep(options) : learn_clothes(options);
  worker.shutdown();
  return 0;
}

}  // namespace weft::examples

int main(int argc, char** argv) { return weft::run_main(argc, argv, weft::examples::run); }
