// Makes a schedule by simulating a step: a worker that becomes free takes the most urgent action
// that is ready.
//
// Input gradients are most urgent, because other workers wait for them. Then come forwards, the
// last stage first, and then weight gradients, which only their own worker needs. If a forward
// would take more memory than is left, weight gradients come first.
//
// Thread safety: a pure function.
#pragma once

#include <optional>

#include "weft/pipeline/schedules/search.h"

namespace weft::pipeline_internal {

struct ListSchedulerOptions {
  bool split = true;  // false: only whole backwards
  // At most this many micro-batches of a stage are between their forward and their backward.
  int most_ahead = 1;
};

// Nullopt: the memory was used up before any worker could go on.
std::optional<PipelineSchedule> list_schedule(const ScheduleProblem& problem,
                                              const ListSchedulerOptions& options);

}  // namespace weft::pipeline_internal
