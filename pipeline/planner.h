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
// Lifetime: the layers that are measured live only during the call.
// Blocking: plan_layers() measures for `seconds` for each number of micro-batches, then computes.
// Errors: RpcError, as of Pipeline and of plan_pipeline(). If a layer fails, the message begins
// with the layer and the action: "3F0: ".
#pragma once

#include <cstdint>
#include <functional>
#include <string>
#include <vector>

#include <ATen/core/Tensor.h>

#include "weft/pipeline/pipeline.h"
#include "weft/pipeline/planner/plan.h"

namespace weft {

struct PlannerOptions {
  std::vector<std::string> workers;  // names
  int64_t layers = 0;
  std::vector<int> micro_batches;  // numbers of them to try; a batch has at least so many rows
  at::Tensor (*loss)(const at::Tensor& output, const at::Tensor& target) = nullptr;
  std::vector<int64_t> memory = {};  // by worker, in bytes, as PlanProblem::memory
  double seconds = 1;                // to measure, for each number of micro-batches
  Timeout timeout = {};              // of one measurement; not set: the worker's default
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

PipelinePlan plan_layers(const PlannerOptions& options, const MakeStage& make,
                         const std::vector<at::Tensor>& inputs,
                         const std::vector<at::Tensor>& targets);
}  // namespace pipeline_internal

// `inputs`, `targets`: a batch as for Pipeline::step(); its values do not matter.
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
