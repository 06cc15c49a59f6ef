// ResNet50 in stages on several workers. It follows PyTorch's tutorial "Distributed Pipeline
// Parallelism Using RPC".
//
//   weft_launch -n 3 -- pipeline_resnet50                  (or torchrun --no-python)
//
// Rank 0 is the master, the other ranks have the stages. The master asks the planner where to cut
// the 18 layers, and in which order the workers shall compute: all workers measure all layers. Then
// it makes a weft::Pipeline of the plan. By default it times steps on generated pictures of the
// tutorial's size, with several numbers of micro-batches, beside the unsplit model. At the end it
// prints such a line, and what the workers did when:
//
//   best: 4 micro-batches, 18.50 s a step, 1.84 times as fast as unsplit
//
// With --input fashion-mnist it learns to classify clothes. README.md has the whole table.
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
#include "weft/examples/pipeline_resnet50/loss.h"
#include "weft/examples/pipeline_resnet50/resnet50.h"
#include "weft/examples/pipeline_resnet50/speed.h"
#include "weft/examples/support/command_line.h"
#include "weft/examples/support/fashion_mnist.h"
#include "weft/examples/support/must.h"
#include "weft/pipeline/planner.h"
#include "weft/worker/run_main.h"
#include "weft/worker/stop_request.h"
#include "weft/worker/worker.h"

namespace weft::examples {

constexpr int64_t kTestedTogether = 100;  // test pictures

struct Options {
  SpeedOptions job;
  std::string input = "generated";
  std::string data = kFashionMnistFolder;
  int64_t batch = 120;
  int64_t size = 128;
  int64_t tested = 2000;
};

// The pictures, enlarged from grey 28 x 28 to three equal channels of size x size.
at::Tensor resized(const Batch& batch, int64_t size) {
  const at::Tensor large = torch::upsample_bilinear2d(batch.images, {size, size}, false);
  return large.expand({-1, 3, -1, -1}).contiguous();
}

// The share of right answers for the first pictures of a test set.
double accuracy(Pipeline& pipeline, const LabelledImages& test, int64_t tested, int64_t size) {
  pipeline.eval();
  int64_t correct = 0;
  for (int64_t begin = 0, end = 0; begin < tested; begin = end) {
    end = tested - begin < 2 * kTestedTogether ? tested : begin + kTestedTogether;
    const Batch batch = make_batch(test, begin, end);
    const at::Tensor scores = pipeline.forward({resized(batch, size)}).front();
    correct += scores.argmax(1).eq(batch.labels).sum().item<int64_t>();
  }
  return static_cast<double>(correct) / static_cast<double>(tested);
}

// False: the master was asked to stop before the last step.
bool learn_clothes(const Options& options) {
  const SpeedOptions& job = options.job;
  const FashionMnist data = must(load_fashion_mnist(options.data));
  if (job.classes < kFashionMnistClasses || options.batch > data.train.size()) {
    throw std::invalid_argument(absl::StrCat("to learn clothes takes ", kFashionMnistClasses,
                                             " classes at least, and a batch of ",
                                             data.train.size(), " pictures at most"));
  }
  const int64_t tested = std::min(options.tested, data.test.size());
  const int most = *std::max_element(job.micro_batches.begin(), job.micro_batches.end());
  if (most > std::min(tested, kTestedTogether)) {
    throw std::invalid_argument(absl::StrCat(most, " micro-batches are too many for ", tested,
                                             " test pictures, ", kTestedTogether, " at a time"));
  }
  const auto size = static_cast<size_t>(options.batch);
  DistributedSampler sampler(static_cast<size_t>(data.train.size()), {.seed = job.seed});
  const auto next = [&] {
    auto indices = sampler.next(size);
    if (!indices || indices->size() < size) {  // a smaller last batch of an epoch is left out
      sampler.set_epoch(sampler.epoch() + 1);
      indices = sampler.next(size);
    }
    return make_batch(data.train, *indices);
  };

  const Batch sample = next();
  const PipelinePlan plan = plan_layers<ResNet50Part>({.workers = job.workers,
                                                       .layers = kResNet50Layers,
                                                       .micro_batches = job.micro_batches,
                                                       .loss = cross_entropy,
                                                       .seconds = job.seconds},
                                                      {resized(sample, options.size)},
                                                      {sample.labels}, job.classes, job.seed);
  Pipeline pipeline(planned_stages<ResNet50Part>(plan, job.workers, job.classes, job.seed),
                    {.loss = cross_entropy, .schedule = plan.schedule});
  DistributedOptimizer<torch::optim::Adam> optimizer(pipeline.parameters(), job.learning_rate);
  std::cout << absl::StreamFormat("%s, %d micro-batches, %d stages\n", plan.name,
                                  plan.schedule.micro_batches(), plan.stages());
  for (int64_t i = 1; i <= job.steps; ++i) {
    if (stop_requested()) {
      std::cout << absl::StreamFormat("stopped after step %d\n", i - 1) << std::flush;
      return false;
    }
    const Batch batch = next();
    const dist_autograd::Context context;
    const PipelineResult result =
        pipeline.step(context, {resized(batch, options.size)}, {batch.labels});
    optimizer.step(context);
    if (i % 10 == 0 || i == 1 || i == job.steps) {
      std::cout << absl::StreamFormat("step %d, loss %.3f\n", i, result.loss) << std::flush;
    }
  }
  std::cout << absl::StreamFormat("accuracy %.3f on %d test pictures after %d steps of %d\n",
                                  accuracy(pipeline, data.test, tested, options.size), tested,
                                  job.steps, options.batch)
            << std::flush;
  return true;
}

int run(int argc, char** argv) {
  Options options;
  SpeedOptions& job = options.job;
  CLI::App app("ResNet50 in stages on several workers, in micro-batches");
  app.add_option("--input", options.input, "generated (it is timed) or fashion-mnist (it learns)")
      ->check(CLI::IsMember({"generated", "fashion-mnist"}))
      ->capture_default_str();
  const CLI::Option* parts =
      app.add_option("--micro-batches", job.micro_batches,
                     "numbers of them, commas between; to learn: the planner chooses")
          ->delimiter(',')
          ->check(CLI::Range(1, 1'000'000));
  app.add_option("--data", options.data, "folder of Fashion-MNIST")->capture_default_str();
  const auto number = [&app](const char* name, int64_t& value, const char* about) {
    return app.add_option(name, value, about)->check(CLI::Range(1, 1'000'000));
  };
  const CLI::Option* batch = number("--batch", options.batch, "pictures of a step");
  const CLI::Option* side = number("--size", options.size, "their width and height");
  const CLI::Option* classes = number("--classes", job.classes, "that the model tells apart");
  const CLI::Option* steps = number("--steps", job.steps, "with each number; of learning");
  number("--tested", options.tested, "pictures of the test, after learning");
  app.add_option("--seconds", job.seconds,
                 "to measure the layers, for each number of micro-batches")
      ->check(CLI::Range(0.0, 300.0))
      ->capture_default_str();
  const CLI::Option* rate = app.add_option("--lr", job.learning_rate, "of SGD; of Adam to learn");
  app.add_option("--seed", job.seed)->capture_default_str();
  if (const auto end = parse_command_line(app, argc, argv)) return end->print();
  const bool learns = options.input == "fashion-mnist";
  if (learns && parts->empty()) job.micro_batches = {2, 4};
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
        "the job is a master, and workers for the stages: start them with weft_launch -n 3 -- "
        "pipeline_resnet50");
  }
  for (uint32_t rank = 1; rank < size; ++rank) job.workers.push_back(absl::StrCat("worker", rank));
  worker_options.name = leads ? "master" : absl::StrCat("worker", worker_options.place.rank);
  worker_options.threads = 1;                                 // a stage does one thing at a time
  worker_options.default_timeout = std::chrono::minutes(10);  // a step may take so long
  torch::manual_seed(job.seed);
  Worker worker = Worker::join(std::move(worker_options));
  expect_stop_requests();  // the workers of the stages serve on
  at::set_num_threads(1);  // whatever OMP_NUM_THREADS says
  bool complete = true;
  if (leads && learns) {
    complete = learn_clothes(options);
  } else if (leads) {
    complete = measure_speed(job, torch::randn({options.batch, 3, options.size, options.size}),
                             torch::randint(job.classes, {options.batch}));
  }
  worker.shutdown();
  return complete ? 0 : kStoppedExitCode;
}

}  // namespace weft::examples

int main(int argc, char** argv) { return weft::run_main(argc, argv, weft::examples::run); }
