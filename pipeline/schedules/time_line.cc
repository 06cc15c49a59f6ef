#include "weft/pipeline/schedules/time_line.h"

#include <algorithm>
#include <cmath>
#include <cstddef>

#include "absl/strings/str_cat.h"

namespace weft {

TimeLine planned_time_line(const PipelineSchedule& schedule, const SchedulePrice& price) {
  TimeLine line;
  for (size_t row = 0; row < schedule.workers.size(); ++row) {
    std::vector<TimedAction>& actions = line.emplace_back();
    for (size_t i = 0; i < schedule.workers[row].size(); ++i) {
      const SchedulePrice::Span& span = price.workers[row].spans[i];
      actions.push_back({schedule.workers[row][i], span.begin, span.end});
    }
  }
  return line;
}

std::string draw_time_line(const TimeLine& line, int columns) {
  double end = 0;
  for (const auto& row : line) {
    for (const TimedAction& each : row) end = std::max(end, each.end);
  }
  const auto width = static_cast<size_t>(std::max(1, columns));
  const auto column = [&](double time) {
    const double part = end > 0 ? std::clamp(time / end, 0.0, 1.0) : 0;
    return static_cast<size_t>(std::lround(part * static_cast<double>(width)));
  };
  const size_t digits = std::to_string(line.size()).size();
  std::string text;
  for (size_t row = 0; row < line.size(); ++row) {
    std::string drawn(width, '.');
    for (const TimedAction& each : line[row]) {
      const size_t from = column(each.begin), to = std::max(from, column(each.end));
      std::string name = each.action.to_string();
      name.resize(to - from, '-');
      drawn.replace(from, to - from, name);
    }
    const std::string number = std::to_string(row + 1);
    absl::StrAppend(&text, "row ", std::string(digits - number.size(), ' '), number, " |", drawn,
                    "|\n");
  }
  return text;
}

}  // namespace weft
