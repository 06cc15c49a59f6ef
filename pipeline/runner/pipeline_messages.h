// Defines what the controller of a pipeline tells its workers, what they answer, and what they send
// each other.
//
// Thread safety: plain values.
#pragma once

#include <cstdint>
#include <map>
#include <string>
#include <tuple>
#include <utility>
#include <vector>

#include <ATen/core/Tensor.h>

#include "weft/dist_optim/module_host.h"
#include "weft/pipeline/runner/wiring.h"
#include "weft/rref/rref.h"

namespace weft::pipeline_internal {

// Identifies a pipeline in the group: the WorkerId of its controller as bits, and a number there.
using PipelineId = std::pair<uint64_t, uint64_t>;

// Tells a worker its part, once.
struct PipelinePart {
  PipelineId id;
  std::string schedule;           // as CSV
  Wiring wiring;                  // of all stages
  std::vector<uint64_t> workers;  // of each row: the WorkerId as bits
  int row = 0;                    // of this worker
  std::map<int, RRef<dist_optim_internal::ModuleHost>> modules;  // of its stages
  std::string loss;                                              // the wire name of the loss
};
inline auto weft_fields(PipelinePart& p) {
  return std::tie(p.id, p.schedule, p.wiring, p.workers, p.row, p.modules, p.loss);
}

// Starts a step. A worker that has no stage that takes inputs or targets gets
// none.
struct StepStart {
  uint64_t number = 0;                          // ascending
  bool evaluates = false;                       // forwards only, without gradients
  uint64_t seed = 0;                            // of the step's random numbers
  std::vector<std::vector<at::Tensor>> inputs;  // by micro-batch
  std::vector<at::Tensor> targets;              // by micro-batch
  std::vector<double> weights;                  // of the losses of the micro-batches
};
inline auto weft_fields(StepStart& s) {
  return std::tie(s.number, s.evaluates, s.seed, s.inputs, s.targets, s.weights);
}

// An action that has run.
struct ExecutedAction {
  uint32_t place = 0;  // in the row of the schedule
  double begin = 0;    // seconds since the worker began the step
  double end = 0;
};
inline auto weft_fields(ExecutedAction& e) { return std::tie(e.place, e.begin, e.end); }

struct StepDone {
  at::Tensor token;
  std::vector<double> losses;  // by micro-batch; empty where the last stage is elsewhere
  // Of an evaluation, by micro-batch; empty where the last stage is elsewhere.
  std::vector<std::vector<at::Tensor>> outputs;
  std::vector<ExecutedAction> executed;  // in the order in which they ran
};
inline auto weft_fields(StepDone& d) { return std::tie(d.token, d.losses, d.outputs, d.executed); }

// A StageMessage and its tensors, on the wire.
struct PipelineMessage {
  PipelineId pipeline;
  uint64_t step = 0;
  bool evaluates = false;  // the step
  int from_stage = 0;
  char work = 'F';
  int micro_batch = 0;
  int to_stage = 0;
  std::vector<at::Tensor> values;
  std::vector<uint8_t> requires_grad;
};
inline auto weft_fields(PipelineMessage& m) {
  return std::tie(m.pipeline, m.step, m.evaluates, m.from_stage, m.work, m.micro_batch, m.to_stage,
                  m.values, m.requires_grad);
}

}  // namespace weft::pipeline_internal
