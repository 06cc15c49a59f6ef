// Draws what the workers of a pipeline do at what time, as text.
//
//   row 1 |0F0-0F1-........0B0-----0B1-----|
//   row 2 |....1F0-1B0-----1F1-1B1-----....|
//
// It draws planned actions (price_schedule) and executed ones (PipelineResult).
//
// Thread safety: pure functions.
// Units: seconds.
#pragma once

#include <string>
#include <vector>

#include "weft/pipeline/schedules/price.h"
#include "weft/pipeline/schedules/schedule.h"

namespace weft {

// An action, and when it runs.
struct TimedAction {
  StageAction action;
  double begin = 0;
  double end = 0;
};
// By row of the schedule, in the order in which they run.
using TimeLine = std::vector<std::vector<TimedAction>>;

// When the actions of a schedule run, as price_schedule() says.
TimeLine planned_time_line(const PipelineSchedule& schedule, const SchedulePrice& price);

// One line per row, `columns` characters of time. An action that is too short for its name shows as
// much of it as it has space for.
std::string draw_time_line(const TimeLine& line, int columns = 100);

}  // namespace weft
