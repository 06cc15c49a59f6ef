// Runs the agent and its observers as processes, under weft_launch and torchrun. Some observers are
// killed or start late.
#include <chrono>
#include <cstdio>
#include <signal.h>
#include <string>
#include <vector>

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "absl/strings/ascii.h"
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

const LaunchedExample kJob("rl_agent_observers");

// Returns the agent's lines about updates.
std::vector<std::string> curve(const std::string& output) {
  std::vector<std::string> curve;
  for (const absl::string_view line : absl::StrSplit(output, '\n')) {
    if (absl::StartsWith(line, "update ")) curve.emplace_back(line);
  }
  return curve;
}

TEST(RlAgentObservers, SolvesTheTaskAndSaysWhen) {
  const Outcome outcome = kJob.run(5, "--seconds 150");
  EXPECT_EQ(outcome.code, 0) << outcome.output;
  EXPECT_THAT(outcome.output,
              ContainsRegex("solved CartPole-v1 after [0-9]+ episodes, [0-9]+ steps, [0-9.]+ s: 4 "
                            "observers, mean batch [0-9.]+"));
}

TEST(RlAgentObservers, LearnsWithEveryShapeOfCalls) {
  for (const char* options : {"--calls two-calls", "--calls one-call", "--environments 4"}) {
    const Outcome outcome = kJob.run(3, absl::StrCat(options, " --updates 3"));
    EXPECT_EQ(outcome.code, 0) << outcome.output;
    EXPECT_THAT(outcome.output, HasSubstr("\nupdate 3, "));
    EXPECT_THAT(outcome.output, HasSubstr("stopped after "));
  }
}

TEST(RlAgentObservers, InLockstepTheCurveIsTheSameTwice) {
  const Outcome one = kJob.run(4, "--deterministic --updates 3");
  const Outcome other = kJob.run(4, "--deterministic --updates 3");
  EXPECT_EQ(one.code, 0) << one.output;
  EXPECT_GE(curve(one.output).size(), 3u);
  EXPECT_EQ(curve(one.output), curve(other.output));
  EXPECT_THAT(one.output, HasSubstr("mean batch 3.0"));
  const Outcome another_seed = kJob.run(4, "--deterministic --updates 3 --seed 7");
  EXPECT_NE(curve(one.output), curve(another_seed.output));
}

TEST(RlAgentObservers, AKilledObserverIsMissedAndALateOneTakesPart) {
  pid_t victim = -1;
  std::string port;
  bool killed = false;
  FILE* late = nullptr;
  const Outcome outcome = kJob.run_greeting(
      "echo pid of $RANK is $$ port $MASTER_PORT", "--on-failure continue --run-id late -n 4",
      "--updates 15 --seconds 150", [&](const std::string& line) {
        if (absl::StrContains(line, "pid of 2 is ")) {
          const std::vector<std::string> words = absl::StrSplit(line, ' ');
          (void)absl::SimpleAtoi(words.at(5), &victim);
          port = std::string(absl::StripAsciiWhitespace(words.at(7)));
        }
        if (late != nullptr || !absl::StrContains(line, "update 2,")) return;
        killed = victim > 0 && kill(victim, SIGKILL) == 0;
        late = popen(absl::StrCat("RANK=7 WORLD_SIZE=8 MASTER_ADDR=127.0.0.1 MASTER_PORT=", port,
                                  " TORCHELASTIC_RUN_ID=late "
                                  "OMP_NUM_THREADS=1 ",
                                  kJob.program(), " 2>&1")
                         .c_str(),
                     "r");
      });
  ASSERT_TRUE(killed) << outcome.output;
  EXPECT_EQ(outcome.code, 128 + SIGKILL);  // the launcher's report of the killed rank
  EXPECT_THAT(outcome.output, HasSubstr("observer002 is missed"));
  EXPECT_THAT(outcome.output, HasSubstr("observer007 takes part"));
  EXPECT_THAT(outcome.output, HasSubstr("update 15, "));
  EXPECT_THAT(outcome.output, ContainsRegex("stopped after .*: 3 observers"));
  // It exits by itself when the agent has left.
  ASSERT_NE(late, nullptr);
  EXPECT_EQ(pclose(late), 0);
}

TEST(RlAgentObservers, SigtermStopsItAfterAStep) {
  const Outcome outcome = kJob.run_and_stop(3, "--seconds 150", "update 2,");
  EXPECT_EQ(outcome.code, 128 + SIGTERM) << outcome.output;
  EXPECT_THAT(outcome.output, HasSubstr("stopped after "));
  EXPECT_THAT(outcome.output, Not(HasSubstr("weft_launch:"))) << "nothing failed";
}

// The runs of the observers take minutes.
TEST(RlAgentObservers, SigtermToTheAgentCancelsTheRunsAtOnce) {
  std::chrono::steady_clock::time_point stopped_at;
  const Outcome outcome =
      kJob.run_and_stop_rank(0, 3, "--steps 1000000 --environments 16 --seconds 3600", "update 2,",
                             [&] { stopped_at = std::chrono::steady_clock::now(); });
  EXPECT_LT(std::chrono::steady_clock::now() - stopped_at, std::chrono::seconds(25))
      << "the grace period is 30 s";
  EXPECT_EQ(outcome.code, 128 + SIGTERM) << outcome.output;
  EXPECT_THAT(outcome.output, HasSubstr("stopped after "));
  EXPECT_EQ(kJob.count_exits(outcome, 128 + SIGTERM), 1u) << "the observers leave with 0";
}

TEST(RlAgentObservers, RunsUnderTorchrun) {
  if (!kJob.has_torchrun()) GTEST_SKIP() << kNoTorchrun;
  const Outcome outcome = kJob.run_torchrun(3, "--updates 3");
  EXPECT_EQ(outcome.code, 0) << outcome.output;
  EXPECT_THAT(outcome.output, HasSubstr("stopped after "));
}

TEST(RlAgentObservers, BadOptionsAndMissingObserversAreNamed) {
  EXPECT_THAT(kJob.run(2, "--calls three-calls").output, HasSubstr("three-calls"));
  const Outcome alone = kJob.run(1, "--seconds 1");
  EXPECT_EQ(alone.code, 1);
  EXPECT_THAT(alone.output, HasSubstr("not solved within 1 s"));
  EXPECT_THAT(alone.output, Not(HasSubstr("takes part")));
  EXPECT_THAT(kJob.run(1, "--deterministic").output, HasSubstr("needs an observer"));
  EXPECT_THAT(kJob.run(2, "--deterministic --calls one-call").output, HasSubstr("excludes"));
}

}  // namespace
}  // namespace weft::examples
