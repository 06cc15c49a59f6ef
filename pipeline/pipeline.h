// Trains a model whose stages are on several workers, micro-batch by micro-batch.
//
//   class Trunk : public torch::nn::Module { public: explicit Trunk(int64_t width);
//                                            at::Tensor forward(const at::Tensor& x); };
//   WEFT_REGISTER_MODULE(Trunk, int64_t);                        // Head likewise
//   at::Tensor loss_of(const at::Tensor& scores, const at::Tensor& labels);
//   WEFT_REGISTER_FUNCTION(loss_of);
//
//   weft::Pipeline pipeline({weft::stage<Trunk>("worker1", 64), weft::stage<Head>("worker2", 10)},
//                           {.loss = loss_of, .schedule = weft::schedules::zero_bubble(2, 6)});
//   weft::DistributedOptimizer<torch::optim::SGD> optimizer(pipeline.parameters(), 0.05);
//
//   weft::dist_autograd::Context context;
//   double loss = pipeline.step(context, {images}, {labels}).loss;  // all micro-batches
//   optimizer.step(context);                                        // all stages, or none
//
// A step divides the inputs and the targets along dimension 0 into as many micro-batches as the
// schedule has, of equal size as far as possible. Each worker does its row of the schedule. The
// loss is the mean over the batch: the loss of a micro-batch counts by its size. The gradients have
// the bits of one process that runs the same micro-batches one after the other.
//
// A step is one backward pass of the context. So its gradients are readable on all workers, or if
// it failed on none. Hooks of parameters and observers see the sum over the micro-batches, and
// clipping works as ever. A forward may change its inputs, but later nothing that it has returned.
// Modules that change buffers in forward (BatchNorm) do so micro-batch by micro-batch, also in a
// step that fails.
//
// The random numbers of a forward depend on the pipeline's seed, the step, the stage and the
// micro-batch only, unless another thread of the process draws from LibTorch's generator meanwhile.
// The forwards of all pipelines in a process take turns with the generator.
//
// Thread safety: one thread at a time.
// Lifetime: the stages live as long as the Pipeline, or another reference to their modules.
// Blocking: the constructor; step() and forward() until all workers have done their rows; train().
// Errors: RpcError. After a failed step, the next one works. The codes:
//
//   - InvalidArgument: stages, wiring and schedule do not fit together; inputs or targets that do
//     not divide into the micro-batches; an output, loss or gradient that does not fit its stage.
//
//   - FailedPrecondition: the loss is not registered; a schedule whose workers would wait for each
//     other; an invalid context.
//
//   - Unknown: a forward or a backward threw. The message begins with the action, such as "1F3: ".
//
//   - Unavailable: a worker died. DeadlineExceeded: the step took longer than PipelineOptions::
//     timeout.
#pragma once

#include <cstdint>
#include <memory>
#include <utility>
#include <vector>

#include <ATen/core/Tensor.h>

#include "absl/status/statusor.h"
#include "weft/base/clock.h"
#include "weft/dist_autograd/context.h"
#include "weft/dist_optim/hosted_module.h"
#include "weft/pipeline/schedules/schedule.h"
#include "weft/pipeline/schedules/stage_graph.h"
#include "weft/pipeline/schedules/time_line.h"

namespace weft {

namespace pipeline_internal {
class LayerProfiler;
class PipelineController;
}  // namespace pipeline_internal

// A module on a worker, and where its inputs come from.
class PipelineStage {
 public:
  template <class M>
  PipelineStage(const HostedModule<M>& module)  // NOLINT: implicit
      : host_(module.host()), parameters_(module.parameters()) {}

  // Takes these outputs of earlier stages, in this order. By default a stage takes all outputs of
  // the stage before it, and the first stage takes the inputs of the pipeline.
  PipelineStage from(std::vector<StageOutput> inputs) && {
    inputs_ = std::move(inputs);
    wired_ = true;
    return std::move(*this);
  }

 private:
  friend class pipeline_internal::LayerProfiler;
  friend class pipeline_internal::PipelineController;
  RRef<dist_optim_internal::ModuleHost> host_;
  RRef<ParameterSet> parameters_;
  bool wired_ = false;
  std::vector<StageOutput> inputs_;
};

// Makes a stage of a module that is constructed on `to` (hosted_module.h).
template <class M, class... Argument>
PipelineStage stage(const Destination& to, Argument&&... argument) {
  return HostedModule<M>(to, std::forward<Argument>(argument)...);
}

struct PipelineOptions {
  // Maps the first output of the last stage and the target of a micro-batch to a scalar, the mean
  // over the micro-batch. It must be registered (WEFT_REGISTER_FUNCTION).
  at::Tensor (*loss)(const at::Tensor& output, const at::Tensor& target) = nullptr;
  // With as many stages as the pipeline. The stages of a row must be on one worker, and those of
  // different rows on different workers.
  absl::StatusOr<PipelineSchedule> schedule = PipelineSchedule();
  uint64_t seed = 0;
  Timeout timeout = {};  // of a step; not set: the worker's default for calls
};

struct PipelineResult {
  double loss = 0;             // the mean over the batch
  std::vector<double> losses;  // of each micro-batch
  // What each worker did, in seconds since it began the step. draw_time_line() shows it.
  TimeLine executed;
};

class Pipeline {
 public:
  Pipeline(std::vector<PipelineStage> stages, PipelineOptions options);
  ~Pipeline();
  Pipeline(Pipeline&&) noexcept;
  Pipeline& operator=(Pipeline&&) noexcept;

  // `inputs`: of the stages without inputs from other stages. `targets`: one tensor. All have the
  // same size in dimension 0. No gradient goes to the inputs. `context` must be the one of this
  // thread.
  PipelineResult step(const dist_autograd::Context& context, const std::vector<at::Tensor>& inputs,
                      const std::vector<at::Tensor>& targets);

  // Runs the forwards of all stages without gradients, in the micro-batches and in the order of the
  // schedule. Returns the outputs of the last stage for the whole batch: those of the
  // micro-batches, concatenated along dimension 0.
  std::vector<at::Tensor> forward(const std::vector<at::Tensor>& inputs);
  // The mode of all stages, from their next forward on.
  void train(bool on = true) const;
  void eval() const { train(false); }

  // Of all stages, in order. Give them to a DistributedOptimizer.
  std::vector<RRef<ParameterSet>> parameters() const;

 private:
  std::unique_ptr<pipeline_internal::PipelineController> controller_;
};

}  // namespace weft
