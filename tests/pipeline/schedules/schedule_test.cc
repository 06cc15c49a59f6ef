#include "weft/pipeline/schedules/schedule.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

namespace weft {
namespace {

using ::testing::HasSubstr;

TEST(PipelineScheduleTest, IsWrittenAndReadAsCsv) {
  const PipelineSchedule schedule{
      {{{0, StageWork::kForward, 0}, {0, StageWork::kBackward, 0}, {0, StageWork::kReduce}},
       {{1, StageWork::kForward, 0},
        {1, StageWork::kRecompute, 0},
        {1, StageWork::kInputGradients, 0},
        {1, StageWork::kWeightGradients, 0}}}};
  EXPECT_EQ(schedule.to_csv(), "0F0,0B0,0G\n1F0,1R0,1I0,1W0\n");
  EXPECT_EQ(PipelineSchedule::from_csv(schedule.to_csv()).value(), schedule);
  EXPECT_EQ(schedule.stages(), 2);
  EXPECT_EQ(schedule.micro_batches(), 1);
  EXPECT_TRUE(schedule.trains());
}

TEST(PipelineScheduleTest, ReadsTorchsCells) {
  const auto schedule =
      PipelineSchedule::from_csv(", 0F0 ,,(0F1;3B0)OVERLAP_F_B\r\n3F10,0REDUCE_GRAD\n");
  ASSERT_TRUE(schedule.ok()) << schedule.status();
  EXPECT_EQ(schedule->to_csv(), "0F0,0F1,3B0\n3F10,0G\n");
}

TEST(PipelineScheduleTest, ForwardsAloneDoNotTrain) {
  EXPECT_FALSE(PipelineSchedule::from_csv("0F0,0F1\n").value().trains());
}

TEST(PipelineScheduleTest, BadTextIsRefusedByRowAndCell) {
  for (const auto& [text, message] : {
           std::pair("0F0\n1F0,1X0\n", "row 2: '1X0' is no action"),
           std::pair("0F0\nF0\n", "row 2: 'F0' is no action"),
           std::pair("0F\n", "row 1: '0F' is no action"),
           std::pair("0F-1\n", "row 1: '0F-1' is no action"),
           std::pair("0F 1\n", "row 1: '0F 1' is no action"),
           std::pair("0F99999999999\n", "row 1: '0F99999999999' is no action"),
           std::pair("0G1\n", "row 1: '0G1' is for the whole step"),
           std::pair("(0F1;0B)OVERLAP_F_B\n", "row 1: '0B' is no action"),
           std::pair("(0F1;0B0\n", "row 1: '(0F1;0B0' is no action"),
           std::pair("0F0,0F1\n1F0,1F", "is the file cut off?"),
           std::pair("", "is the file cut off?"),
       }) {
    const auto schedule = PipelineSchedule::from_csv(text);
    EXPECT_EQ(schedule.status().code(), absl::StatusCode::kInvalidArgument) << text;
    EXPECT_THAT(std::string(schedule.status().message()), HasSubstr(message));
  }
}

TEST(ScheduleTest, RecomputingPutsAnRBeforeEachBackwardOfTheStages) {
  const PipelineSchedule schedule =
      PipelineSchedule::from_csv("0F0,0F1,0I0,0W0,0B1\n1F0,1B0,1F1,1R1,1B1\n").value();
  EXPECT_EQ(schedule.recomputing({0}).to_csv(),
            "0F0,0F1,0R0,0I0,0W0,0R1,0B1\n1F0,1B0,1F1,1R1,1B1\n");
  EXPECT_EQ(schedule.recomputing({1}).to_csv(), schedule.to_csv()) << "it has an R already";
  EXPECT_EQ(schedule.recomputing({}).to_csv(), schedule.to_csv());
}

}  // namespace
}  // namespace weft
