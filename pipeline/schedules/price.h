// Says whether a schedule can run, and what it costs, before anything runs.
//
// The time is that of a simulation: a worker does its actions in order, each as soon as what it
// needs is there. The memory follows from the order of each row alone. It is what a worker keeps
// between its actions. Parameters, messages on their way, and what an action needs only while it
// runs come on top. A worker that waits may do its next W early. Then the gradients of that W,
// which are counted here from their place in the row on, are there earlier.
//
// Thread safety: pure functions.
// Units: seconds, bytes.
// Errors: those of check_schedule() and check_costs().
#pragma once

#include <cstdint>
#include <limits>
#include <vector>

#include "absl/status/statusor.h"
#include "weft/pipeline/schedules/schedule.h"
#include "weft/pipeline/schedules/stage_graph.h"

namespace weft {

// InvalidArgument: an action is missing, there twice, out of range, or in the row of another worker
// than its stage. Or a stage takes outputs of one that is not below it. FailedPrecondition: workers
// would wait for each other for ever; the message shows where.
absl::Status check_schedule(const PipelineSchedule& schedule, const StageGraph& graph);

// What one micro-batch costs in one stage.
struct StageCosts {
  double forward = 1;
  double input_gradients = 1;
  double weight_gradients = 1;
  int64_t output_bytes = 0;  // of what the forward sends to each stage that takes it
  int64_t input_bytes = 0;   // kept from F to R, if there is an R
  int64_t kept_bytes = 0;  // from F, or R, until I or B; an F before an R keeps them until it ends
  int64_t kept_for_weights = 0;  // from I until W
  // Of the weights: for the sum, and for each micro-batch whose gradients wait for an earlier one.
  int64_t gradient_bytes = 0;
};

struct PipelineCosts {
  std::vector<StageCosts> stages;
  // Between two workers. Nothing is sent inside one.
  double latency = 0;
  double bytes_per_second = std::numeric_limits<double>::infinity();
};

// InvalidArgument, naming the stage: a time or a number of bytes is negative or no number, or the
// bytes are more than 2^40. Also if there are other than `stages` stages.
absl::Status check_costs(const PipelineCosts& costs, int stages);

struct SchedulePrice {
  struct Span {
    double begin = 0;
    double end = 0;
  };
  struct Worker {
    std::vector<Span> spans;  // of its actions, in the order of its row
    double busy = 0;
    int64_t peak_bytes = 0;
    int64_t bytes_sent = 0;
    int64_t messages_sent = 0;
  };
  double step = 0;
  std::vector<Worker> workers;

  // The part of the workers' time in which they do nothing, from 0 to 1.
  double idle_share() const;
};

absl::StatusOr<SchedulePrice> price_schedule(const PipelineSchedule& schedule,
                                             const StageGraph& graph, const PipelineCosts& costs);

}  // namespace weft
