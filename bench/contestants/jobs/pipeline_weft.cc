// ResNet50 on two workers with weft::Pipeline and the planner, in processes of one host.
#include <algorithm>
#include <chrono>
#include <limits>
#include <memory>
#include <utility>
#include <vector>

#include <torch/torch.h>

#include "absl/strings/str_cat.h"
#include "weft/async/value_or_throw.h"
#include "weft/base/status.h"
#include "weft/bench/contestants/contestants.h"
#include "weft/bench/contestants/rpc/weft_crowd.h"
#include "weft/bench/report/statistics.h"
#include "weft/dist_optim/distributed_optimizer.h"
#include "weft/examples/pipeline_resnet50/loss.h"
#include "weft/examples/pipeline_resnet50/unsplit.h"
#include "weft/pipeline/planner.h"
#include "weft/pipeline/schedules/price.h"
#include "weft/pipeline/schedules/schedules.h"

namespace weft::bench {
namespace {

using examples::kResNet50Layers;
using examples::ResNet50Part;
using examples::UnsplitResNet50;

constexpr double kLearningRate = 0.05;
constexpr uint64_t kSeed = 1;
constexpr double kMeasureSeconds = 1;

double seconds_now() {
  return std::chrono::duration<double>(std::chrono::steady_clock::now().time_since_epoch()).count();
}

// What a step of a schedule costs by its price.
double priced_seconds(const PipelineSchedule& schedule, const PlanDivision& division,
                      const std::vector<int64_t>& cuts, const std::vector<int>& worker_of) {
  const PipelineCosts costs{costs_of_stages(division, cuts, worker_of)};
  const int stages = static_cast<int>(worker_of.size());
  return price_schedule(schedule, StageGraph::chain(stages), costs)->step;
}

// The same for fill-drain, at the cut that is best for it.
double fill_drain_seconds(const PlanDivision& division) {
  const PipelineSchedule schedule = schedules::fill_drain(2, division.micro_batches).value();
  double least = std::numeric_limits<double>::infinity();
  for (int64_t cut = 1; cut < kResNet50Layers; ++cut) {
    least = std::min(least, priced_seconds(schedule, division, {0, cut, kResNet50Layers}, {0, 1}));
  }
  return least;
}

WorkerOptions options_of_rank(int rank) {
  WorkerOptions options;
  options.name = rank == 0 ? "master" : absl::StrCat("worker", rank);
  options.threads = 1;  // a pipeline stage does one thing at a time
  options.default_timeout = std::chrono::minutes(10);
  return options;
}

class Master final : public Leader {
 public:
  absl::StatusOr<std::string> listen() override { return door_.listen(); }
  absl::Status join(const std::string& /*address*/, int members) override {
    WEFT_RETURN_IF_ERROR(door_.join(members));
    for (int rank = 1; rank <= members; ++rank) workers_.push_back(absl::StrCat("worker", rank));
    at::set_num_threads(1);
    torch::manual_seed(kSeed);
    images_ = torch::randn({kPipelineBatch, 3, kPipelineSize, kPipelineSize});
    labels_ = torch::randint(kPipelineClasses, {kPipelineBatch});
    unsplit_ = std::make_unique<UnsplitResNet50>(kPipelineClasses, kSeed, kLearningRate);
    return absl::OkStatus();
  }

  // Measures the layers (for the prices), one step of the unsplit model, and pipeline steps until
  // the block is full.
  absl::StatusOr<BlockResult> run(const Row& row, int64_t amount, double seconds) override {
    if (row.work != Work::kPipeline) return absl::UnimplementedError("no row of a pipeline");
    try {
      return run_block(amount, seconds);
    } catch (const std::exception& error) {
      return absl::InternalError(error.what());
    }
  }

  void close() override {
    model_.reset();
    door_.close();
  }

 private:
  struct Model {
    Model(PipelinePlan planned, const std::vector<std::string>& workers)
        : plan(std::move(planned)),
          pipeline(planned_stages<ResNet50Part>(plan, workers, kPipelineClasses, kSeed),
                   {.loss = examples::squared_error, .schedule = plan.schedule}),
          optimizer(pipeline.parameters(), torch::optim::SGDOptions(kLearningRate)) {}

    const PipelinePlan plan;
    Pipeline pipeline;
    DistributedOptimizer<torch::optim::SGD> optimizer;
  };

  PlanProblem measure(int64_t parts) const {
    return measure_layers<ResNet50Part>({.workers = workers_,
                                         .layers = kResNet50Layers,
                                         .micro_batches = {static_cast<int>(parts)},
                                         .loss = examples::squared_error,
                                         .seconds = kMeasureSeconds},
                                        {images_}, {labels_}, kPipelineClasses, kSeed);
  }

  BlockResult run_block(int64_t parts, double seconds) {
    Model& model = model_of(parts);
    BlockResult result;
    const PlanDivision measured = measure(parts).divisions.front();
    result.schedule_us =
        1e6 * priced_seconds(model.plan.schedule, measured, model.plan.cuts, model.plan.worker_of);
    result.fill_drain_us = 1e6 * fill_drain_seconds(measured);
    result.unsplit_us = 1e6 * step_unsplit(parts);
    step(model);  // after SIGSTOP the first step must find the peers again
    std::vector<double> steps;
    const double begun = seconds_now();
    do {
      steps.push_back(1e6 * step(model));
      result.seconds = seconds_now() - begun;
    } while (result.seconds < seconds);
    result.calls = static_cast<int64_t>(steps.size()) * kPipelineBatch;
    // `usage` covers the unsplit step, the first pipeline step and those that count. It also
    // contains the measuring of the layers, some seconds.
    result.all_calls = result.calls + 2 * kPipelineBatch;
    result.median_us = median(steps);
    result.p99_us = quantile(steps, 0.99);
    return result;
  }

  Model& model_of(int64_t parts) {
    if (parts == parts_) return *model_;
    model_.reset();  // two models at once need much memory; each row has its own
    model_ = std::make_unique<Model>(value_or_throw(plan_pipeline(measure(parts))), workers_);
    parts_ = parts;
    step_unsplit(parts);  // makes the heap grow before the measurement
    for (int i = 0; i < kPipelineWarmUps; ++i) step(*model_);
    return *model_;
  }

  double step(Model& model) {
    const double begun = seconds_now();
    const dist_autograd::Context context;
    model.pipeline.step(context, {images_}, {labels_});
    model.optimizer.step(context);
    return seconds_now() - begun;
  }
  double step_unsplit(int64_t parts) {
    const double begun = seconds_now();
    unsplit_->step(images_, labels_, parts);
    return seconds_now() - begun;
  }

  CrowdDoor door_{options_of_rank};
  std::vector<std::string> workers_;
  at::Tensor images_, labels_;
  std::unique_ptr<UnsplitResNet50> unsplit_;
  int64_t parts_ = 0;  // of the model in model_
  std::unique_ptr<Model> model_;
};

}  // namespace

CrowdContestant weft_pipeline() {
  return {"weft", &pipeline_rows(), [] { return std::make_unique<Master>(); },
          [] { return serving_member(options_of_rank); }};
}

}  // namespace weft::bench
