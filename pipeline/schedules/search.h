// Searches for the fastest schedule on measured times, within the workers' memory.
//
// It tries every schedule of schedules.h that places the stages as the problem does. It also tries
// those of a list scheduler, whose free worker takes the most urgent action that is ready. Some of
// them may need too much memory. If `recompute` is set, it tries these again with stages that
// recompute. It takes the stages of the workers whose memory does not suffice, one after the other,
// that with the most bytes first. It then improves the best schedule by swapping neighbours, as
// long as that shortens the step. So on the given times the result is never slower than any
// schedule of schedules.h that fits into memory.
//
// Thread safety: a pure function. The result depends on the arguments only.
// Blocking: computes for some seconds if workers times micro-batches is above 1,000 or so.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "absl/status/statusor.h"
#include "weft/pipeline/schedules/price.h"
#include "weft/pipeline/schedules/schedule.h"
#include "weft/pipeline/schedules/stage_graph.h"

namespace weft {

struct ScheduleProblem {
  StageGraph graph;
  std::vector<int> worker_of;  // by stage
  int micro_batches = 1;
  PipelineCosts costs;
  // By worker, in bytes, for SchedulePrice::Worker::peak_bytes. Empty: there is no limit.
  std::vector<int64_t> memory = {};
  // Stages may recompute where memory does not suffice. Their forwards then run twice, and must not
  // change buffers, as batch norms do.
  bool recompute = false;
  int most_swaps = 2000;  // that are priced to improve the best schedule

  int workers() const;
};

struct FoundSchedule {
  PipelineSchedule schedule;
  SchedulePrice price;
  std::string name;  // of the schedule that it began with, such as "zero_bubble"
};

// InvalidArgument: the problem contradicts itself. ResourceExhausted: no schedule that was tried
// fits into memory; the message names a worker, and the bytes that it needs for one micro-batch at
// a time.
absl::StatusOr<FoundSchedule> search_schedule(const ScheduleProblem& problem);

}  // namespace weft
