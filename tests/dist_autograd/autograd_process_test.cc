// Distributed autograd between real processes. The gradients must be right, and a worker that dies
// must leave nothing behind on the others, through shared memory and over gRPC.
//
// WEFT_TEST_SEED=n repeats the programs from one seed, WEFT_TEST_RUNS=n makes more.
#include <csignal>
#include <random>
#include <string>

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "absl/strings/str_cat.h"
#include "weft/tests/dist_autograd/random_program.h"
#include "weft/tests/support/launched.h"

namespace weft::testing {
namespace {

using ::testing::AllOf;
using ::testing::HasSubstr;
using weft::testing::Outcome;

Outcome launch(size_t ranks, const std::string& task, const std::string& options = "",
               const std::string& environment = "") {
  const std::string command =
      absl::StrCat(environment, " ", weft::testing::kWeftLaunch, " -n ", ranks, " ", options,
                   " --master-port 0 -- ", WEFT_BUILD_DIR,
                   "/tests/dist_autograd/autograd_test_program ", task, " 2>&1");
  return weft::testing::run_command(command);
}

TEST(AutogradProcesses, RandomProgramsGiveTheGradientsOfOneProcess) {
  const uint64_t runs = number_from_environment("WEFT_TEST_RUNS", 60);
  const uint64_t seed = number_from_environment("WEFT_TEST_SEED", std::random_device()() | 1);
  std::printf("first seed %llu\n", static_cast<unsigned long long>(seed));
  Ingredients contents;
  for (size_t ranks = 2; ranks <= 4; ++ranks) {
    const Outcome outcome = launch(ranks, absl::StrCat("programs ", seed + ranks, " ", runs));
    ASSERT_EQ(outcome.code, 0) << outcome.output;
    for (size_t rank = 0; rank < ranks; ++rank) {
      EXPECT_THAT(outcome.output, HasSubstr(absl::StrCat("worker", rank, " holds nothing")));
    }
    contents += Ingredients::parse(outcome.output);
  }
  std::printf("%s\n", contents.to_string().c_str());
  EXPECT_EQ(contents.programs, static_cast<int64_t>(6 * runs));
  EXPECT_EQ(contents.missing(), "");
}

class AutogradDeaths : public ::testing::TestWithParam<const char*> {};

TEST_P(AutogradDeaths, OpenContextsOfTheDeadWorkerAreReleasedEverywhere) {
  const Outcome outcome = launch(3, "orphan", "--on-failure=continue", GetParam());
  EXPECT_EQ(outcome.code, 128 + SIGKILL) << outcome.output;
  EXPECT_THAT(outcome.output,
              AllOf(HasSubstr("worker0 holds nothing"), HasSubstr("worker1 holds nothing")));
}

TEST_P(AutogradDeaths, InMidPassAreNamedAndLeaveNothing) {
  const Outcome outcome = launch(3, "loss", "--on-failure=continue", GetParam());
  EXPECT_EQ(outcome.code, 128 + SIGKILL) << outcome.output;
  EXPECT_THAT(outcome.output,
              AllOf(HasSubstr("worker0 heard: "), HasSubstr("worker 'worker2' died"),
                    HasSubstr("worker0 holds nothing"), HasSubstr("worker1 holds nothing")));
}

INSTANTIATE_TEST_SUITE_P(All, AutogradDeaths, ::testing::Values("", kOverGrpc),
                         [](const auto& info) { return transport_name(info); });

}  // namespace
}  // namespace weft::testing
