// Plans a pipeline on measured costs: where to cut a list of layers into stages, how many
// micro-batches a step has, and in which order the workers compute.
//
// Stages are placed one per worker, or two per worker, looped or in a V. For each placement and
// each number of micro-batches, the search begins with cuts that make the workers equally busy.
// Then it moves one cut or two neighbours at a time, as long as the step becomes shorter. The step
// is what price_schedule() predicts for the best schedule found. If there are few ways to cut, the
// search tries all of them. Within a memory limit, stages may recompute (search.h).
//
// Thread safety: a pure function. The result depends on the arguments only.
// Blocking: computes for some seconds if workers times micro-batches is above 1,000 or so.
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
  // By worker and layer: what one micro-batch costs, if the layer were a stage. `input_bytes` are
  // those of its input, and `kept_bytes` do not include them.
  std::vector<std::vector<StageCosts>> layers;
};

struct PlanProblem {
  std::vector<PlanDivision> divisions;  // the planner chooses one of them
  double latency = 0;                   // between two workers, as in PipelineCosts
  double bytes_per_second = std::numeric_limits<double>::infinity();
  std::vector<int64_t> memory = {};  // by worker; empty: there is no limit
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

// What one micro-batch costs in a stage of these layers, first to last - 1.
StageCosts costs_of_stage(const std::vector<StageCosts>& layers, int64_t first, int64_t last);

}  // namespace weft
