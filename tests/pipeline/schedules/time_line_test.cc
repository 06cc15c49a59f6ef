// draw_time_line(): what a reader sees.
#include "weft/pipeline/schedules/time_line.h"

#include <gtest/gtest.h>

#include "weft/pipeline/schedules/schedules.h"

namespace weft {
namespace {

TEST(TimeLineTest, DrawsAPlannedSchedule) {
  const PipelineSchedule schedule = schedules::one_forward_one_backward(2, 2).value();
  PipelineCosts costs;
  costs.stages.resize(2);
  const SchedulePrice price = price_schedule(schedule, StageGraph::chain(2), costs).value();
  EXPECT_EQ(draw_time_line(planned_time_line(schedule, price), 36),
            "row 1 |0F0-0F1-........0B0-----....0B1-----|\n"
            "row 2 |....1F0-1B0-----1F1-1B1-----........|\n");
}

TEST(TimeLineTest, CutsNamesThatAreTooLongAndDrawsNothing) {
  EXPECT_EQ(draw_time_line({{{{0, StageWork::kForward, 12}, 0, 1}}, {}}, 2),
            "row 1 |0F|\n"
            "row 2 |..|\n");
  EXPECT_EQ(draw_time_line({{}}, 3), "row 1 |...|\n");
  EXPECT_EQ(draw_time_line({}, 3), "");
}

}  // namespace
}  // namespace weft
