// References between real processes, under weft_launch: the seven cases, and two deaths through
// shared memory and over gRPC.
//
// Nothing may be left in any process.
#include <csignal>
#include <string>

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "absl/strings/str_cat.h"
#include "weft/tests/support/launched.h"

namespace weft {
namespace {

using ::testing::HasSubstr;
using weft::testing::Outcome;

Outcome launch(const std::string& task, const std::string& options = "",
               const std::string& environment = "") {
  const std::string command = absl::StrCat(environment, " ", weft::testing::kWeftLaunch, " -n 3 ",
                                           options, " --master-port 0 -- ", WEFT_BUILD_DIR,
                                           "/tests/rref/rref_process_program ", task, " 2>&1");
  return weft::testing::run_command(command);
}

class RRefProcessTest : public ::testing::TestWithParam<int> {};

TEST_P(RRefProcessTest, KeepsTheValueWhileItIsUsedAndLeavesNothingAnywhere) {
  const Outcome outcome = launch(absl::StrCat("case ", GetParam()));
  EXPECT_EQ(outcome.code, 0) << outcome.output;
  for (int rank = 0; rank < 3; ++rank) {
    EXPECT_THAT(outcome.output, HasSubstr(absl::StrCat("worker", rank, " holds nothing")));
    EXPECT_THAT(outcome.output, HasSubstr(absl::StrCat("worker", rank, " ended")));
  }
}

INSTANTIATE_TEST_SUITE_P(Case, RRefProcessTest, ::testing::Range(1, 8));

class RRefProcessDeathTest : public ::testing::TestWithParam<const char*> {};

TEST_P(RRefProcessDeathTest, ReleasesTheForksOfAKilledUser) {
  const Outcome outcome = launch("kill user", "--on-failure=continue", GetParam());
  EXPECT_EQ(outcome.code, 128 + SIGKILL) << outcome.output;
  for (const char* line : {"forks of worker1 are released", "worker0 holds nothing",
                           "worker2 holds nothing", "worker0 ended", "worker2 ended"}) {
    EXPECT_THAT(outcome.output, HasSubstr(line));
  }
}

TEST_P(RRefProcessDeathTest, TellsEveryUserThatAKilledOwnersValueIsLost) {
  const Outcome outcome = launch("kill owner", "--on-failure=continue", GetParam());
  EXPECT_EQ(outcome.code, 128 + SIGKILL) << outcome.output;
  for (const char* line :
       {"worker0: lost at worker1: ", "worker2: lost at worker1: ", "its owner is dead",
        "worker0 holds nothing", "worker2 holds nothing", "worker0 ended", "worker2 ended"}) {
    EXPECT_THAT(outcome.output, HasSubstr(line));
  }
}

INSTANTIATE_TEST_SUITE_P(All, RRefProcessDeathTest, ::testing::Values("", weft::testing::kOverGrpc),
                         [](const auto& info) { return weft::testing::transport_name(info); });

}  // namespace
}  // namespace weft
