// Cuts a model of layers into the stages of a pipeline, by measurement.
//
//   // M's constructor takes the first layer, the end of the layers, and then other arguments.
//   WEFT_REGISTER_MODULE(ResNet50Part, int64_t, int64_t, int64_t, uint64_t);
//
//   const weft::PlannerOptions options = {.workers = {"worker1", "worker2"}, .layers = 18,
//                                         .micro_batches = {2, 3, 4, 6}, .loss = loss_of};
//   const weft::PipelinePlan plan =
//       weft::plan_layers<ResNet50Part>(options, {images}, {labels}, classes, seed);
//   weft::Pipeline pipeline(
//       weft::planned_stages<ResNet50Part>(plan, options.workers, classes, seed),
//       {.loss = loss_of, .schedule = plan.schedule});
//
// For each number of micro-batches, all workers measure all layers at the same time, so that each
// time is that of a busy host. plan_pipeline() then chooses (planner/plan.h).
//
// Thread safety: as Pipeline.
// Lifetime: the layers that are measured live only during the call. Meanwhile each worker has all
// layers: parameters, the sums of their gradients, and what one micro-batch keeps.
// Blocking: measure_layers() and plan_layers() measure for `seconds` for each number of
// micro-batches. Then plan_layers() computes.
// Errors: RpcError, as of Pipeline and of plan_pipeline(). If a layer fails, the message begins
// with the layer and the action: "3F0: ".
#pragma once

#include <cstdint>
#include <functional>
#include <limits>
#include <string>
#include <vector>

#include <ATen/core/Tensor.h>

#include "weft/pipeline/pipeline.h"
#include "weft/pipeline/planner/plan.h"

namespace weft {

struct PlannerOptions {
  std::vector<std::string> workers;  // names
  int64_t layers = 0;                // from 1 to 4,096
  std::vector<int> micro_batches;    // numbers of them to try; a batch has at least so many rows
  at::Tensor (*loss)(const at::Tensor& output, const at::Tensor& target) = nullptr;
  // As in PlanProblem, which says what the limit of memory leaves out.
  std::vector<int64_t> memory = {};  // by worker, in bytes
  bool recompute = false;            // not for modules whose forward changes buffers (BatchNorm)
  double latency = 0;                // seconds of a message between two workers
  double bytes_per_second = std::numeric_limits<double>::infinity();
  double seconds = 1;    // to measure, for each number of micro-batches
  Timeout timeout = {};  // of one measurement; not set: the worker's default
};

namespace pipeline_internal {
// Makes a stage of the layers first to last - 1 on a worker.
using MakeStage =
    std::function<PipelineStage(const std::string& worker, int64_t first, int64_t last)>;

template <class M, class... Argument>
MakeStage stage_maker(const Argument&... argument) {
  return [argument...](const std::string& worker, int64_t first, int64_t last) {
    return stage<M>(worker, first, last, argument...);
  };
}

PlanProblem measure_layers(const PlannerOptions& options, const MakeStage& make,
                           const std::vector<at::Tensor>& inputs,
                           const std::vector<at::Tensor>& targets);
PipelinePlan plan_layers(const PlannerOptions& options, const MakeStage& make,
                         const std::vector<at::Tensor>& inputs,
                         const std::vector<at::Tensor>& targets);
}  // namespace pipeline_internal

// Measures what plan_pipeline() needs. `inputs`, `targets`: any batch that
// Pipeline::step() takes.
template <class M, class... Argument>
PlanProblem measure_layers(const PlannerOptions& options, const std::vector<at::Tensor>& inputs,
                           const std::vector<at::Tensor>& targets, const Argument&... argument) {
  return pipeline_internal::measure_layers(options, pipeline_internal::stage_maker<M>(argument...),
                                           inputs, targets);
}

// Measures and plans.
template <class M, class... Argument>
PipelinePlan plan_layers(const PlannerOptions& options, const std::vector<at::Tensor>& inputs,
                         const std::vector<at::Tensor>& targets, const Argument&... argument) {
  return pipeline_internal::plan_layers(options, pipeline_internal::stage_maker<M>(argument...),
                                        inputs, targets);
}

// Makes the stages of a plan: stage s on workers[plan.worker_of[s]].
template <class M, class... Argument>
std::vector<PipelineStage> planned_stages(const PipelinePlan& plan,
                                          const std::vector<std::string>& workers,
                                          const Argument&... argument) {
  std::vector<PipelineStage> stages;
  for (size_t s = 0; s < plan.worker_of.size(); ++s) {
    stages.push_back(stage<M>(workers.at(static_cast<size_t>(plan.worker_of[s])), plan.cuts[s],
                              plan.cuts[s + 1], argument...));
  }
  return stages;
}

}  // namespace weft
