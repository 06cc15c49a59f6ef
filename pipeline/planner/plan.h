// Plans a pipeline on measured costs: where to cut a list of layers into stages, how many
// micro-batches a step has, and in which order the workers compute.
//
// Stages are placed one per worker, or two per worker, looped or in a V. For each placement and
// each number of micro-batches, the search begins with cuts that make the workers equally busy.
// Then it moves one cut or two neighbours at a time, as long as the step becomes shorter. The step
// is what price_schedule() predicts for the best schedule found. If there are few ways to cut, the
// search tries all of them. If `recompute` is set, stages recompute where memory does not suffice
// (search.h).
//
// Thread safety: a pure function. The result depends on the arguments only.
// Blocking: computes for some seconds with 2 workers. It may be minutes with 8 workers and 128
// micro-batches.
// Units: seconds, bytes.
#pragma once

#include <cstdint>
#include <limits>
#include <string>
#include <vector>

#include "absl/status/statusor.h"
#include "weft/pipeline/schedules/price.h"
#include "weft/pipeline/schedules/schedule.h"

namespace weft {

// A step cut into so many micro-batches.
struct PlanDivision {
  int micro_batches = 1;
  // By worker and layer: what one micro-batch costs, if the layer were a stage. `kept_bytes` do not
  // include the input, because it is what the layer before has put out. `kept_for_weights` do, if
  // the layer keeps it so long.
  std::vector<std::vector<StageCosts>> layers;
};

struct PlanProblem {
  std::vector<PlanDivision> divisions;  // the planner chooses one of them
  double latency = 0;                   // between two workers, as in PipelineCosts
  double bytes_per_second = std::numeric_limits<double>::infinity();
  // By worker, for SchedulePrice::Worker::peak_bytes: parameters, the optimizer's state, messages
  // and what one action needs while it runs come on top. Empty: there is no limit.
  std::vector<int64_t> memory = {};
  bool recompute = false;  // stages may recompute, as ScheduleProblem::recompute says
};

struct PipelinePlan {
  std::vector<int64_t> cuts;   // the first layer of each stage, and then the number of layers
  std::vector<int> worker_of;  // by stage
  PipelineSchedule schedule;
  SchedulePrice price;  // of one step
  std::string name;     // of the schedule that the search began with, such as "zero_bubble"

  int stages() const { return static_cast<int>(worker_of.size()); }
};

// InvalidArgument: the problem contradicts itself, or there are more workers than layers.
// ResourceExhausted: nothing that was tried fits into memory; the message is search_schedule()'s.
absl::StatusOr<PipelinePlan> plan_pipeline(const PlanProblem& problem);

// What one micro-batch costs in each stage, for cuts and workers as in PipelinePlan.
std::vector<StageCosts> costs_of_stages(const PlanDivision& division,
                                        const std::vector<int64_t>& cuts,
                                        const std::vector<int>& worker_of);

}  // namespace weft
