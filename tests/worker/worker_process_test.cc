// Real processes under weft_launch: what one rank's death or mistake looks like to the others.
#include <array>
#include <cstdio>
#include <string>
#include <sys/wait.h>

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "absl/strings/str_cat.h"

namespace weft {
namespace {

using ::testing::AllOf;
using ::testing::HasSubstr;

struct Outcome {
  int code = -1;
  std::string output;  // of all ranks and the launcher
};

// `environment`: "NAME=value" pairs for the ranks.
Outcome launch(int ranks, const std::string& task, const std::string& options = "",
               const std::string& environment = "") {
  const std::string command = absl::StrCat(
      environment, " ", WEFT_BUILD_DIR, "/worker/weft_launch -n ", ranks, " ", options,
      " --master-port 0 -- ", WEFT_BUILD_DIR, "/tests/worker/worker_test_program ", task, " 2>&1");
  Outcome outcome;
  FILE* pipe = popen(command.c_str(), "r");
  if (pipe == nullptr) return outcome;
  std::array<char, 4096> buffer;
  while (size_t count = fread(buffer.data(), 1, buffer.size(), pipe)) {
    outcome.output.append(buffer.data(), count);
  }
  const int status = pclose(pipe);
  outcome.code = WIFEXITED(status) ? WEXITSTATUS(status) : 1000 + WTERMSIG(status);
  return outcome;
}

TEST(WorkerProcessTest, EveryRankCallsEveryOtherAndAllEndInGoodOrder) {
  const Outcome outcome = launch(4, "ring");
  EXPECT_EQ(outcome.code, 0) << outcome.output;
  for (int rank = 0; rank < 4; ++rank) {
    EXPECT_THAT(outcome.output, HasSubstr(absl::StrCat("worker", rank, " called 4")));
  }
}

TEST(WorkerProcessTest, AKilledRankIsAnErrorWithItsNameAndTheOthersEndInGoodOrder) {
  for (int victim : {2, 0}) {  // 0 leads the shutdown
    const Outcome outcome = launch(3, absl::StrCat("victim ", victim), "--on-failure=continue");
    EXPECT_EQ(outcome.code, 128 + SIGKILL) << outcome.output;
    for (int rank = 0; rank < 3; ++rank) {
      if (rank == victim) continue;
      EXPECT_THAT(outcome.output, AllOf(HasSubstr(absl::StrCat("worker", rank, " heard: ")),
                                        HasSubstr(absl::StrCat("worker 'worker", victim, "'")),
                                        HasSubstr(absl::StrCat("worker", rank, " ended"))));
    }
  }
}

TEST(WorkerProcessTest, TwoRanksWithOneNameFailAndTheLauncherSaysWhy) {
  const Outcome outcome = launch(2, "join", "", "WEFT_TEST_NAME=twin");
  EXPECT_NE(outcome.code, 0);
  EXPECT_THAT(outcome.output, AllOf(HasSubstr("ALREADY_EXISTS"), HasSubstr("twin")));
}

TEST(WorkerProcessTest, TwoIdeasOfTheWorldSizeFailAndBothAreNamed) {
  const Outcome outcome = launch(2, "join", "", "WEFT_TEST_WORLD=3");
  EXPECT_NE(outcome.code, 0);
  EXPECT_THAT(outcome.output, AllOf(HasSubstr("INVALID_ARGUMENT"), HasSubstr("world size")));
}

TEST(WorkerProcessTest, ARankThatNeverJoinsIsNamed) {
  const Outcome outcome = launch(3, "absent", "--on-failure=continue");
  EXPECT_NE(outcome.code, 0);
  EXPECT_THAT(outcome.output, HasSubstr("DEADLINE_EXCEEDED"));
}

}  // namespace
}  // namespace weft
