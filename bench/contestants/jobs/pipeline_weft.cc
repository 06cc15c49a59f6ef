// ResNet50 on two workers with weft::Pipeline and zero_bubble, in processes of one host.
#include <algorithm>
#include <chrono>
#include <memory>
#include <utility>
#include <vector>

#include <torch/torch.h>

#include "absl/strings/str_cat.h"
#include "weft/base/status.h"
#include "weft/bench/contestants/contestants.h"
#include "weft/bench/contestants/rpc/weft_crowd.h"
#include "weft/bench/report/statistics.h"
#include "weft/dist_optim/distributed_optimizer.h"
#include "weft/examples/pipeline_resnet50/local_resnet50.h"
#include "weft/examples/pipeline_resnet50/pipeline.h"
#include "weft/pipeline/pipeline.h"
#include "weft/pipeline/schedules/schedules.h"
#include "weft/rpc/function.h"

namespace weft::bench {

at::Tensor pipeline_loss(const at::Tensor& scores, const at::Tensor& labels) {
  return examples::squared_error(scores, labels);
}
WEFT_REGISTER_FUNCTION(pipeline_loss);

namespace {

using examples::Cuts;
using examples::LocalResNet50;
using examples::Pictures;
using examples::ResNet50Part;
using examples::seconds_now;
using examples::squared_error;

constexpr double kLearningRate = 0.05;
constexpr uint64_t kSeed = 1;
constexpr double kMeasureSeconds = 1;

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
    batch_ = {torch::randn({kPipelineBatch, 3, kPipelineSize, kPipelineSize}),
              torch::randint(kPipelineClasses, {kPipelineBatch})};
    unsplit_ = std::make_unique<LocalResNet50>(Cuts{0, examples::kResNet50Layers}, kPipelineClasses,
                                               kSeed);
    return absl::OkStatus();
  }

  // Measures the stages (for the ideal time), one step of the unsplit model, and pipeline steps
  // until the block is full.
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
    Model(Cuts at, const std::vector<std::string>& workers, int64_t micro_batches)
        : cuts(std::move(at)),
          pipeline(stages(cuts, workers),
                   {.loss = pipeline_loss,
                    .schedule = schedules::zero_bubble(static_cast<int>(workers.size()),
                                                       static_cast<int>(micro_batches))}),
          optimizer(pipeline.parameters(), torch::optim::SGDOptions(kLearningRate)) {}

    const Cuts cuts;
    Pipeline pipeline;
    DistributedOptimizer<torch::optim::SGD> optimizer;
  };

  static std::vector<PipelineStage> stages(const Cuts& cuts,
                                           const std::vector<std::string>& workers) {
    std::vector<PipelineStage> stages;
    for (size_t i = 0; i < workers.size(); ++i) {
      stages.push_back(
          stage<ResNet50Part>(workers[i], cuts[i], cuts[i + 1], kPipelineClasses, kSeed));
    }
    return stages;
  }

  BlockResult run_block(int64_t parts, double seconds) {
    const Pictures micro_batch = examples::split(batch_, parts).front();
    Model& model = model_of(parts, micro_batch);
    BlockResult result;
    result.ideal_us =
        1e6 * examples::ideal_seconds(examples::measure_stages(workers_, model.cuts, micro_batch,
                                                               kPipelineClasses, kMeasureSeconds),
                                      parts);
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
    // contains the measuring of the stages, about a second.
    result.all_calls = result.calls + 2 * kPipelineBatch;
    result.median_us = median(steps);
    result.p99_us = quantile(steps, 0.99);
    return result;
  }

  Model& model_of(int64_t parts, const Pictures& micro_batch) {
    if (parts == parts_) return *model_;
    model_.reset();  // two models at once need much memory; each row has its own
    const Cuts cuts =
        examples::cuts_for("auto", workers_, micro_batch, kPipelineClasses, kMeasureSeconds);
    model_ = std::make_unique<Model>(cuts, workers_, parts);
    parts_ = parts;
    step_unsplit(parts);  // makes the heap grow before the measurement
    for (int i = 0; i < kPipelineWarmUps; ++i) step(*model_);
    return *model_;
  }

  double step(Model& model) {
    const double begun = seconds_now();
    const dist_autograd::Context context;
    model.pipeline.step(context, {batch_.images}, {batch_.labels});
    model.optimizer.step(context);
    return seconds_now() - begun;
  }
  double step_unsplit(int64_t parts) {
    torch::optim::SGD optimizer(unsplit_->parameters(), kLearningRate);
    const double begun = seconds_now();
    unsplit_->backward(batch_, parts, squared_error);
    optimizer.step();
    optimizer.zero_grad();
    return seconds_now() - begun;
  }

  CrowdDoor door_{options_of_rank};
  std::vector<std::string> workers_;
  Pictures batch_;
  std::unique_ptr<LocalResNet50> unsplit_;
  int64_t parts_ = 0;  // of the model in model_
  std::unique_ptr<Model> model_;
};

}  // namespace

CrowdContestant weft_pipeline() {
  return {"weft", &pipeline_rows(), [] { return std::make_unique<Master>(); },
          [] { return serving_member(options_of_rank); }};
}

}  // namespace weft::bench
