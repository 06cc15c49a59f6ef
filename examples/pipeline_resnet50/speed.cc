#include "weft/examples/pipeline_resnet50/speed.h"

#include <algorithm>
#include <chrono>
#include <iostream>
#include <optional>
#include <utility>

#include <torch/torch.h>

#include "absl/strings/str_format.h"
#include "absl/strings/str_join.h"
#include "weft/dist_optim/distributed_optimizer.h"
#include "weft/examples/pipeline_resnet50/loss.h"
#include "weft/examples/pipeline_resnet50/unsplit.h"
#include "weft/pipeline/planner.h"
#include "weft/worker/stop_request.h"

namespace weft::examples {
namespace {

constexpr int kWarmUps = 4;  // glibc's heap grows for so many steps
constexpr int kUnsplitWarmUps = 1;

template <class Step>
double seconds_of(const Step& step) {
  const auto begun = std::chrono::steady_clock::now();
  step();
  return std::chrono::duration<double>(std::chrono::steady_clock::now() - begun).count();
}

// Of an even number, the higher of the middle two.
double median(std::vector<double> values) {
  const auto middle = values.begin() + static_cast<std::ptrdiff_t>(values.size() / 2);
  std::nth_element(values.begin(), middle, values.end());
  return *middle;
}

struct Speed {
  PipelinePlan plan;
  double seconds = 0;  // of a step
  double unsplit = 0;
  TimeLine executed;  // of the last step
};

// Nullopt: the process was asked to stop before the last step.
std::optional<Speed> speed_of(const SpeedOptions& options, int micro_batches,
                              const at::Tensor& images, const at::Tensor& labels) {
  if (stop_requested()) return std::nullopt;
  Speed speed;
  speed.plan = plan_layers<ResNet50Part>({.workers = options.workers,
                                          .layers = kResNet50Layers,
                                          .micro_batches = {micro_batches},
                                          .loss = squared_error,
                                          .seconds = options.seconds},
                                         {images}, {labels}, options.classes, options.seed);
  Pipeline pipeline(
      planned_stages<ResNet50Part>(speed.plan, options.workers, options.classes, options.seed),
      {.loss = squared_error, .schedule = speed.plan.schedule});
  DistributedOptimizer<torch::optim::SGD> optimizer(pipeline.parameters(), options.learning_rate);
  UnsplitResNet50 unsplit(options.classes, options.seed, options.learning_rate);
  const auto step = [&] {
    const dist_autograd::Context context;
    speed.executed = pipeline.step(context, {images}, {labels}).executed;
    optimizer.step(context);
  };
  const auto unsplit_step = [&] { unsplit.step(images, labels, micro_batches); };
  for (int i = 0; i < kWarmUps && !stop_requested(); ++i) step();
  for (int i = 0; i < kUnsplitWarmUps && !stop_requested(); ++i) unsplit_step();
  std::vector<double> times, unsplit_times;
  for (int64_t i = 0; i < options.steps; ++i) {
    if (stop_requested()) return std::nullopt;
    times.push_back(seconds_of(step));
    unsplit_times.push_back(seconds_of(unsplit_step));
  }
  speed.seconds = median(times);
  speed.unsplit = median(unsplit_times);
  return speed;
}

}  // namespace

bool measure_speed(const SpeedOptions& options, const at::Tensor& images,
                   const at::Tensor& labels) {
  std::cout << absl::StreamFormat(
                   "a batch of %d, %d x %d; seconds of a step, medians of %d\n"
                   "micro-batches  schedule             cut at    predicted  measured  unsplit  "
                   "speed-up\n",
                   images.size(0), images.size(2), images.size(3), options.steps)
            << std::flush;
  std::vector<Speed> speeds;
  for (const int micro_batches : options.micro_batches) {
    std::optional<Speed> measured = speed_of(options, micro_batches, images, labels);
    if (!measured) {
      std::cout << "stopped" << std::endl;
      return false;
    }
    const Speed& speed = speeds.emplace_back(*std::move(measured));
    const std::vector<int64_t>& cuts = speed.plan.cuts;
    std::cout << absl::StreamFormat(
                     "%13d  %-19s  %-9s %9.2f %9.2f %8.2f %9.2f\n", micro_batches, speed.plan.name,
                     absl::StrJoin(cuts.begin() + 1, cuts.end() - 1, ","), speed.plan.price.step,
                     speed.seconds, speed.unsplit, speed.unsplit / speed.seconds)
              << std::flush;
  }
  const Speed& best =
      *std::min_element(speeds.begin(), speeds.end(),
                        [](const Speed& a, const Speed& b) { return a.seconds < b.seconds; });
  std::cout << absl::StreamFormat(
                   "best: %d micro-batches, %.2f s a step, %.2f times as fast as unsplit\n",
                   best.plan.schedule.micro_batches(), best.seconds, best.unsplit / best.seconds)
            << draw_time_line(best.executed) << std::flush;
  return true;
}

}  // namespace weft::examples
