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
using weft::testing::has_torchrun;
using weft::testing::kNoTorchrun;
using weft::testing::launch_example;
using weft::testing::Outcome;
using weft::testing::run_command;
using weft::testing::torchrun_example;

constexpr const char* kJob =
    WEFT_BUILD_DIR "/examples/batched_parameter_server/batched_parameter_server";
constexpr const char* kLaunch = WEFT_BUILD_DIR "/worker/weft_launch";

Outcome run_ranks(int ranks, const std::string& options) {
  return launch_example(kJob, ranks, options);
}

TEST(BatchedParameterServer, LearnsInEveryWay) {
  const Outcome outcome = run_ranks(4, "--pictures 6000");
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
  const std::string job = absl::StrCat("sh -c 'echo pid of $RANK is $$ there; exec ", kJob,
                                       " --mode batched --epochs 3 --pictures 6000'");
  pid_t victim = -1;
  const Outcome outcome =
      run_command(absl::StrCat(kLaunch, " --on-failure continue -n 4 -- ", job, " 2>&1"),
                  [&](const std::string& line) {
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

TEST(BatchedParameterServer, RunsUnderTorchrun) {
  if (!has_torchrun()) GTEST_SKIP() << kNoTorchrun;
  const Outcome outcome = torchrun_example(kJob, 3, "--mode locked --pictures 1000");
  EXPECT_EQ(outcome.code, 0) << outcome.output;
  EXPECT_THAT(outcome.output, HasSubstr("locked   test accuracy"));
}

TEST(BatchedParameterServer, WhatIsMissingIsNamed) {
  const Outcome alone = run_ranks(1, "");
  EXPECT_NE(alone.code, 0);
  EXPECT_THAT(alone.output, HasSubstr("weft_launch -n 4 -- batched_parameter_server"));
  const Outcome no_data = run_ranks(3, "--data /nowhere");
  EXPECT_NE(no_data.code, 0);
  EXPECT_THAT(no_data.output, HasSubstr("dataset-fashion-mnist"));
  EXPECT_THAT(run_ranks(2, "--mode never").output, HasSubstr("never"));
  const Outcome few = run_ranks(4, "--pictures 2");
  EXPECT_NE(few.code, 0);
  EXPECT_THAT(few.output, HasSubstr("2 samples"));
}

}  // namespace
}  // namespace weft::examples
