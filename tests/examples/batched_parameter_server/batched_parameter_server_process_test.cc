// Runs the batched parameter server as processes: all modes, a trainer that is killed, missing
// input.
#include <signal.h>
#include <string>
#include <vector>

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "absl/strings/match.h"
#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_split.h"
#include "weft/tests/examples/launched_example.h"

namespace weft::examples {
namespace {

using ::testing::ContainsRegex;
using ::testing::HasSubstr;
using ::testing::Not;
using weft::testing::kNoTorchrun;
using weft::testing::LaunchedExample;
using weft::testing::Outcome;

const LaunchedExample kJob("batched_parameter_server");

TEST(BatchedParameterServer, LearnsInEveryWay) {
  const Outcome outcome = kJob.run(4, "--pictures 6000");
  EXPECT_EQ(outcome.code, 0) << outcome.output;
  // 2,000 pictures for each trainer are 63 updates.
  EXPECT_THAT(outcome.output, ContainsRegex("batched  test accuracy 0\\.[6-9].*, 63 steps of 3.0 "
                                            "updates"));
  EXPECT_THAT(outcome.output,
              ContainsRegex("locked   test accuracy 0\\.[6-9].*, 189 steps of 1.0"));
  EXPECT_THAT(outcome.output,
              ContainsRegex("hogwild  test accuracy 0\\.[6-9].*, 189 steps of 1.0"));
}

TEST(BatchedParameterServer, AKilledTrainerIsMissedAndTheOthersGoOn) {
  pid_t victim = -1;
  const Outcome outcome =
      kJob.run_greeting("echo pid of $RANK is $$ there", "--on-failure continue -n 4",
                        "--mode batched --epochs 3 --pictures 6000", [&](const std::string& line) {
                          if (absl::StrContains(line, "pid of 2 is ")) {
                            const std::vector<std::string> words = absl::StrSplit(line, ' ');
                            (void)absl::SimpleAtoi(words.at(5), &victim);
                          }
                          if (absl::StrContains(line, "trainers learn") && victim > 0) {
                            (void)kill(victim, SIGKILL);
                          }
                        });
  EXPECT_EQ(outcome.code, 128 + SIGKILL);  // the launcher's report of the killed rank
  EXPECT_THAT(outcome.output, HasSubstr("trainer2 is gone"));
  EXPECT_THAT(outcome.output,
              ContainsRegex("batched  test accuracy 0\\.[6-9].*steps of 2\\.[0-9]"));
}

TEST(BatchedParameterServer, SigtermStopsItAfterAStep) {
  const Outcome outcome = kJob.run_and_stop(3, "--epochs 1000 --pictures 2000", "epoch 1 of");
  EXPECT_EQ(outcome.code, 128 + SIGTERM) << outcome.output;
  EXPECT_THAT(outcome.output, ContainsRegex("batched: stopped after [1-9][0-9]* steps"));
  EXPECT_THAT(outcome.output, Not(HasSubstr("locked"))) << "no further mode begins";
  EXPECT_THAT(outcome.output, Not(HasSubstr("weft_launch:"))) << "nothing failed";
}

TEST(BatchedParameterServer, SigtermToTheServerStopsAll) {
  for (const char* mode : {"batched", "locked", "hogwild"}) {
    SCOPED_TRACE(mode);
    const Outcome outcome = kJob.run_and_stop_rank(
        0, 4, absl::StrCat("--mode ", mode, " --epochs 1000 --pictures 2000"), "epoch 1 of");
    EXPECT_EQ(outcome.code, 128 + SIGTERM) << outcome.output;
    EXPECT_THAT(outcome.output, ContainsRegex(": stopped after [1-9][0-9]* steps"));
    EXPECT_EQ(kJob.count_exits(outcome, 128 + SIGTERM), 1u) << outcome.output;
    EXPECT_THAT(outcome.output, Not(HasSubstr("is gone"))) << "no trainer fails";
  }
}

TEST(BatchedParameterServer, SigtermToATrainerAloneChangesNothing) {
  const Outcome outcome =
      kJob.run_and_stop_rank(2, 3, "--mode batched --epochs 3 --pictures 2000", "epoch 1 of");
  EXPECT_EQ(outcome.code, 0) << outcome.output;
  // 1,000 pictures for each trainer are 32 updates.
  EXPECT_THAT(outcome.output, ContainsRegex("batched  test accuracy .*, 96 steps of 2.0 updates"));
}

TEST(BatchedParameterServer, RunsUnderTorchrun) {
  if (!kJob.has_torchrun()) GTEST_SKIP() << kNoTorchrun;
  const Outcome outcome = kJob.run_torchrun(3, "--mode locked --pictures 1000");
  EXPECT_EQ(outcome.code, 0) << outcome.output;
  EXPECT_THAT(outcome.output, HasSubstr("locked   test accuracy"));
}

TEST(BatchedParameterServer, WhatIsMissingIsNamed) {
  const Outcome alone = kJob.run(1);
  EXPECT_NE(alone.code, 0);
  EXPECT_THAT(alone.output, HasSubstr("weft_launch -n 4 -- batched_parameter_server"));
  const Outcome no_data = kJob.run(3, "--data /nowhere");
  EXPECT_NE(no_data.code, 0);
  EXPECT_THAT(no_data.output, HasSubstr("dataset-fashion-mnist"));
  EXPECT_THAT(kJob.run(2, "--mode never").output, HasSubstr("never"));
  const Outcome few = kJob.run(4, "--pictures 2");
  EXPECT_NE(few.code, 0);
  EXPECT_THAT(few.output, HasSubstr("2 pictures are too few for 3 trainers"));
}

}  // namespace
}  // namespace weft::examples
