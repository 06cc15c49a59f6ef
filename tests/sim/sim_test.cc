// Seeded runs of the simulator over the libraries' own cores: no invariant may break.
#include <sstream>

#include <gtest/gtest.h>

#include "weft/tests/sim/runs.h"

namespace weft::sim {
namespace {

class Profiles : public ::testing::TestWithParam<Profile> {};
INSTANTIATE_TEST_SUITE_P(Simulator, Profiles,
                         ::testing::Values(Profile::kEverything, Profile::kSteps, Profile::kJoining,
                                           Profile::kShutdown),
                         [](const auto& info) { return std::string(name_of(info.param)); });

TEST_P(Profiles, TwoThousandRunsHoldEveryInvariant) {
  std::ostringstream out;
  RunOptions options;
  options.profiles = {GetParam()};
  options.runs = 2000;
  options.first_seed = 7'000'000;
  EXPECT_EQ(run_and_report(options, false, out), 0) << out.str();
}

TEST_P(Profiles, OneSeedIsOneRun) {
  Report report;
  for (uint64_t seed = 1; seed <= 20; ++seed) {
    const RunResult first = run_seed(GetParam(), seed, report);
    const RunResult second = run_seed(GetParam(), seed, report);
    EXPECT_EQ(first.events, second.events);
    EXPECT_EQ(first.hash, second.hash) << "seed " << seed;
    EXPECT_NE(first.hash, run_seed(GetParam(), seed + 1, report).hash);
  }
}

TEST_P(Profiles, TheTraceChangesNothing) {
  Report report;
  for (uint64_t seed = 1; seed <= 20; ++seed) {
    Trace words(true);
    const RunResult traced = run_traced(GetParam(), seed, report, words);
    EXPECT_TRUE(traced.violation.invariant.empty());
    EXPECT_EQ(traced.hash, run_seed(GetParam(), seed, report).hash);
  }
}

TEST(Simulator, SeedsThatOnceFailedHold) {
  std::ostringstream out;
  EXPECT_EQ(replay(WEFT_SOURCE_DIR "/tests/sim/seeds.txt", out), 0) << out.str();
}

// A fault without effect proves nothing.
TEST(Simulator, EveryFaultHasEffects) {
  Report report;
  for (uint64_t seed = 1; seed <= 2000; ++seed) run_seed(Profile::kEverything, seed, report);
  for (size_t i = 0; i < kFaults; ++i) {
    EXPECT_GE(report.effective[i], 20) << name_of(static_cast<Fault>(i));
  }
  for (const Effect effect :
       {Effect::kFalseDeathRecords, Effect::kFenced, Effect::kStaleMessages, Effect::kResultsLost,
        Effect::kCallsQueued, Effect::kCreationsCancelled, Effect::kPassesAborted,
        Effect::kDiscoveries, Effect::kContextsRefused}) {
    EXPECT_GT(report.effects[static_cast<size_t>(effect)], 0) << name_of(effect);
  }
}

// The caller of a step and one of its owners die before the step is decided.
TEST(Simulator, TwoDieInOneStep) {
  Report report;
  for (uint64_t seed = 1; seed <= 1000; ++seed) run_seed(Profile::kSteps, seed, report);
  EXPECT_GE(report.effects[static_cast<size_t>(Effect::kSecondDeaths)], 20);
  EXPECT_GE(report.effects[static_cast<size_t>(Effect::kOwnersRestored)], 100);
}

TEST(Simulator, WorkersJoinAndAreRefusedWhileOthersLeave) {
  for (const Profile profile : {Profile::kJoining, Profile::kShutdown}) {
    Report report;
    for (uint64_t seed = 1; seed <= 1000; ++seed) run_seed(profile, seed, report);
    EXPECT_GE(report.effects[static_cast<size_t>(Effect::kJoined)], 100) << name_of(profile);
    if (profile != Profile::kShutdown) continue;
    EXPECT_GE(report.effects[static_cast<size_t>(Effect::kNotJoined)], 20);
  }
}

}  // namespace
}  // namespace weft::sim
