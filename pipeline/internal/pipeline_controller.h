// The side of a pipeline that makes it and starts its steps: checks the parts, tells each worker
// its plan, and brings a step to one end on all workers.
//
// Thread safety: one thread at a time.
// Errors: as in pipeline.h.
#pragma once

#include <cstdint>
#include <map>
#include <string>
#include <vector>

#include "weft/pipeline/pipeline.h"
#include "weft/pipeline/runner/pipeline_worker.h"
#include "weft/pipeline/schedules/schedule.h"

namespace weft::pipeline_internal {

class PipelineController {
 public:
  PipelineController(std::vector<PipelineStage> stages, PipelineOptions options);

  PipelineResult step(const dist_autograd::Context& context, const std::vector<at::Tensor>& inputs,
                      const std::vector<at::Tensor>& targets);
  std::vector<at::Tensor> forward(const std::vector<at::Tensor>& inputs);
  void train(bool on) const;
  std::vector<RRef<ParameterSet>> parameters() const;

 private:
  using Runs = std::vector<Future<StepDone>>;

  Wiring wiring() const;
  // The worker of each row.
  std::vector<WorkerId> workers_of_rows() const;
  // A step with these inputs, divided into micro-batches of a batch of `size`.
  StepStart start_of(const std::vector<at::Tensor>& inputs, int64_t size);
  StepStart part_of(size_t row, const StepStart& whole) const;
  // Runs the step on all workers, and returns what each row has answered.
  std::vector<StepDone> run(const StepStart& whole) const;
  // Waits for all workers. If one fails, ends the step on the others and throws its error.
  std::vector<StepDone> finish(uint64_t step, Runs runs) const;

  const std::vector<PipelineStage> stages_;
  const PipelineOptions options_;
  PipelineSchedule schedule_;
  std::vector<RRef<PipelineWorker>> workers_;  // of each row
  uint64_t steps_ = 0;                         // that have begun
};

}  // namespace weft::pipeline_internal
