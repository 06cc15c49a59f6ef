#include "weft/examples/pipeline_resnet50/sweep.h"

#include <algorithm>
#include <iostream>
#include <optional>

#include <torch/torch.h>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "absl/strings/str_join.h"
#include "weft/checkpoint/atomic_file.h"
#include "weft/dist_optim/distributed_optimizer.h"
#include "weft/examples/pipeline_resnet50/local_resnet50.h"
#include "weft/examples/support/must.h"

namespace weft::examples {
namespace {

// Steps that are not counted, because the heaps still grow. The memalign of glibc 2.36 finds only
// freed blocks that are larger than the wanted size, not equal ones. On the workers the tensors of
// many micro-batches lie between each other.
constexpr int kWarmUps = 4;
constexpr int kLocalWarmUps = 2;

template <class Code>
double seconds_of(const Code& code) {
  const double begun = seconds_now();
  code();
  return seconds_now() - begun;
}

// Measures all three ways in turn.
SweepPoint measure(const SweepOptions& options, const Pictures& batch, int64_t parts) {
  const Pictures micro_batch = split(batch, parts).front();
  SweepPoint point{.micro_batches = parts,
                   .cuts = cuts_for(options.cuts, options.workers, micro_batch, options.classes,
                                    options.seconds)};
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
  const auto step = [&] { train_step(remote_model, optimizer, batch, parts, squared_error); };
  for (int i = 0; i < kWarmUps; ++i) step();
  for (int i = 0; i < kLocalWarmUps; ++i) {
    step_locally(unsplit);
    step_locally(threads);
  }
  for (int64_t i = 0; i < options.steps; ++i) {
    ideal.push_back(ideal_seconds(
        measure_stages(options.workers, point.cuts, micro_batch, options.classes, options.seconds),
        parts));
    unsplit_times.push_back(seconds_of([&] { step_locally(unsplit); }));
    thread_times.push_back(seconds_of([&] { step_locally(threads); }));
    times.push_back(seconds_of(step));
  }
  remote_model.trace(true);  // in a step of its own, because recording costs a little
  step();
  point.spans = remote_model.trace(false);
  point.ideal = median(ideal);
  point.unsplit = median(unsplit_times);
  point.threads = median(thread_times);
  point.seconds = median(times);
  return point;
}

}  // namespace

void sweep(const SweepOptions& options, const Pictures& batch) {
  std::optional<AtomicFile> picture;
  if (!options.picture.empty()) picture.emplace(must(AtomicFile::create(options.picture)));
  for (const int64_t parts : options.micro_batches) split(batch, parts);  // throws at once
  std::cout << absl::StreamFormat("a batch of %d, %d x %d; seconds of a step, medians of %d\n",
                                  batch.images.size(0), batch.images.size(2), batch.images.size(3),
                                  options.steps)
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
  if (!picture) return;
  must(picture->append(
      must(draw_pipeline(absl::StrCat("ResNet50 in ", options.workers.size(), " shards"), points,
                         best, batch.images.size(0)))));
  must(picture->commit());
}

}  // namespace weft::examples
