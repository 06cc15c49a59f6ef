// Runs the pipeline as processes: its speed on small pictures, learning, four workers, wrong input.
#include <filesystem>
#include <fstream>
#include <signal.h>
#include <string>
#include <unistd.h>

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "absl/strings/str_cat.h"
#include "weft/tests/examples/launched_example.h"

namespace weft::examples {
namespace {

using ::testing::ContainsRegex;
using ::testing::HasSubstr;
using ::testing::Not;
using weft::testing::kNoTorchrun;
using weft::testing::LaunchedExample;
using weft::testing::Outcome;

const LaunchedExample kJob("pipeline_resnet50");

constexpr const char* kSmall = "--batch 8 --size 32 --classes 10 --steps 1 --seconds 0.05 ";
constexpr const char* kOne = "            1  ";  // the row of one micro-batch begins so

TEST(PipelineResNet50, MeasuresItsSpeedAndDrawsAStep) {
  const Outcome outcome = kJob.run(3, absl::StrCat(kSmall, "--micro-batches 1,4"));
  EXPECT_EQ(outcome.code, 0) << outcome.output;
  EXPECT_THAT(outcome.output, ContainsRegex("\n +1 +[a-z_0-9]+ +[0-9,]+ .*\n +4 .*\nbest: [14] "
                                            "micro-batches, .* times as fast as unsplit\n"));
  // A box that is too narrow for its label shows the beginning of it.
  EXPECT_THAT(outcome.output, ContainsRegex("row 1 .*0F.*\n.*row 2 .*[1-9]F"));
}

TEST(PipelineResNet50, RunsOnFourWorkers) {
  const Outcome outcome = kJob.run(5, absl::StrCat(kSmall, "--micro-batches 2"));
  EXPECT_EQ(outcome.code, 0) << outcome.output;
  EXPECT_THAT(outcome.output, HasSubstr("row 4 "));
}

// Ten classes: a model that has learned nothing is right in one of ten cases, with a loss above
// 2.3.
TEST(PipelineResNet50, LearnsClothes) {
  const Outcome outcome = kJob.run(
      3,
      "--input fashion-mnist --batch 32 --steps 30 --micro-batches 4 --seconds 0.2 --tested 300");
  EXPECT_EQ(outcome.code, 0) << outcome.output;
  EXPECT_THAT(outcome.output,
              ContainsRegex("step 30, loss ([01]|2\\.[01])[0-9.]+\naccuracy 0\\.[3-9][0-9]+ "
                            "on 300 test pictures after 30 steps of 32\n"));
}

TEST(PipelineResNet50, SigtermStopsItAfterAStep) {
  const Outcome outcome = kJob.run_and_stop(
      3, "--input fashion-mnist --batch 32 --steps 100000 --micro-batches 4 --seconds 0.2",
      "step 10,");
  EXPECT_EQ(outcome.code, 128 + SIGTERM) << outcome.output;
  EXPECT_THAT(outcome.output, ContainsRegex("stopped after step [1-9]"));
  EXPECT_THAT(outcome.output, Not(HasSubstr("weft_launch:"))) << "nothing failed";
}

TEST(PipelineResNet50, SigtermStopsTheMeasurementOfItsSpeed) {
  const Outcome outcome =
      kJob.run_and_stop(3, absl::StrCat(kSmall, "--micro-batches 1,2,4,8,1,2,4,8,1,2,4,8"), kOne);
  EXPECT_EQ(outcome.code, 128 + SIGTERM) << outcome.output;
  EXPECT_THAT(outcome.output, HasSubstr("stopped\n"));
  EXPECT_THAT(outcome.output, Not(HasSubstr("best: ")));
  EXPECT_THAT(outcome.output, Not(HasSubstr("weft_launch:"))) << "nothing failed";
}

TEST(PipelineResNet50, SigtermToAWorkerAloneChangesNothing) {
  const Outcome outcome =
      kJob.run_and_stop_rank(1, 3, absl::StrCat(kSmall, "--micro-batches 1,2,4"), kOne);
  EXPECT_EQ(outcome.code, 0) << outcome.output;
  EXPECT_THAT(outcome.output, ContainsRegex("best: [124] micro-batches"));
}

TEST(PipelineResNet50, RunsUnderTorchrun) {
  if (!kJob.has_torchrun()) GTEST_SKIP() << kNoTorchrun;
  const Outcome outcome = kJob.run_torchrun(3, absl::StrCat(kSmall, "--micro-batches 2"));
  EXPECT_EQ(outcome.code, 0) << outcome.output;
  EXPECT_THAT(outcome.output, HasSubstr("best: 2 micro-batches"));
}

TEST(PipelineResNet50, WrongInputIsNamed) {
  EXPECT_THAT(kJob.run(1).output, HasSubstr("weft_launch -n 3 -- pipeline_resnet50"));
  EXPECT_THAT(kJob.run(3, absl::StrCat(kSmall, "--micro-batches 9")).output,
              HasSubstr("do not divide into 9 micro-batches of the batch of 8"));
  EXPECT_THAT(kJob.run(3, "--input fashion-mnist --classes 5").output, HasSubstr("10 classes"));
  EXPECT_THAT(kJob.run(20, absl::StrCat(kSmall, "--micro-batches 1")).output,
              HasSubstr("19 workers cannot share 18 layers"));
  EXPECT_THAT(kJob.run(3, "--input fashion-mnist --data /nowhere").output,
              HasSubstr("dataset-fashion-mnist"));
}

}  // namespace
}  // namespace weft::examples
