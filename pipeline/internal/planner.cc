#include "weft/pipeline/planner.h"

#include <set>
#include <utility>

#include "absl/strings/str_cat.h"
#include "weft/async/value_or_throw.h"
#include "weft/base/rpc_error.h"
#include "weft/pipeline/internal/micro_batches.h"
#include "weft/pipeline/profile/layer_profile.h"
#include "weft/pipeline/stage/stage_loss.h"

namespace weft::pipeline_internal {
namespace {
constexpr int64_t kMostLayers = 4096;
}  // namespace

// All layers on all workers, to be measured.
class LayerProfiler {
 public:
  LayerProfiler(const PlannerOptions& options, const MakeStage& make)
      : options_(options), loss_(name_of_loss(options.loss)) {
    for (const std::string& worker : options.workers) {
      std::vector<RRef<dist_optim_internal::ModuleHost>>& layers = layers_.emplace_back();
      for (int64_t layer = 0; layer < options.layers; ++layer) {
        layers.push_back(make(worker, layer, layer + 1).host_);
      }
    }
  }

  // Measures a micro-batch on all workers at the same time.
  std::vector<std::vector<StageCosts>> run(const std::vector<at::Tensor>& inputs,
                                           const at::Tensor& target) const {
    // Without a context, a forward records no graph.
    const dist_autograd::Context context;
    std::vector<Future<std::vector<StageCosts>>> measured;
    for (size_t worker = 0; worker < layers_.size(); ++worker) {
      measured.push_back(
          rpc_async(Destination(layers_[worker].front().owner(), {.timeout = options_.timeout}),
                    profile_layers,
                    ProfileRequest{layers_[worker], inputs, target, loss_, options_.seconds}));
    }
    return collect_all(std::move(measured)).wait();
  }

 private:
  const PlannerOptions& options_;
  const std::string loss_;
  std::vector<std::vector<RRef<dist_optim_internal::ModuleHost>>> layers_;  // by worker
};

PlanProblem measure_layers(const PlannerOptions& options, const MakeStage& make,
                           const std::vector<at::Tensor>& inputs,
                           const std::vector<at::Tensor>& targets) {
  const auto refuse = [](const auto&... parts) {
    throw RpcError(absl::InvalidArgumentError(absl::StrCat(parts...)));
  };
  const auto workers = static_cast<int64_t>(options.workers.size());
  if (workers == 0) refuse("a plan needs a worker");
  const std::set<std::string> names(options.workers.begin(), options.workers.end());
  if (names.size() != options.workers.size()) refuse("a worker is named twice");
  if (!options.memory.empty() && options.memory.size() != options.workers.size()) {
    refuse("there are ", options.memory.size(), " memory limits for ", workers, " workers");
  }
  if (options.layers < workers)
    refuse(workers, " workers cannot share ", options.layers, " layers");
  if (options.layers > kMostLayers) {
    refuse("a model of ", options.layers, " layers: at most ", kMostLayers, " can be measured");
  }
  if (options.micro_batches.empty()) refuse("a plan needs a number of micro-batches to try");
  if (inputs.empty()) refuse("a step needs at least one input");
  if (targets.size() != 1) refuse("a step takes 1 target, not ", targets.size());
  if (!(options.seconds >= 0)) refuse("a measurement cannot take ", options.seconds, " seconds");
  const int64_t size = batch_size(targets.front());
  struct Sample {
    std::vector<at::Tensor> inputs;
    at::Tensor target;
  };
  std::vector<Sample> samples;
  for (const int micro_batches : options.micro_batches) {
    Sample& sample = samples.emplace_back();
    for (const at::Tensor& input : inputs) {
      sample.inputs.push_back(divided(input, size, micro_batches, "inputs").front());
    }
    sample.target = divided(targets.front(), size, micro_batches, "targets").front();
  }
  const LayerProfiler profiler(options, make);
  PlanProblem problem;
  problem.memory = options.memory;
  problem.recompute = options.recompute;
  problem.latency = options.latency;
  problem.bytes_per_second = options.bytes_per_second;
  for (size_t i = 0; i < samples.size(); ++i) {
    problem.divisions.push_back(
        {options.micro_batches[i], profiler.run(samples[i].inputs, samples[i].target)});
  }
  return problem;
}

PipelinePlan plan_layers(const PlannerOptions& options, const MakeStage& make,
                         const std::vector<at::Tensor>& inputs,
                         const std::vector<at::Tensor>& targets) {
  return value_or_throw(plan_pipeline(measure_layers(options, make, inputs, targets)));
}

}  // namespace weft::pipeline_internal
