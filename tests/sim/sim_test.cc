// Seeded runs of the simulator over the libraries' own cores: no invariant may break.
#include <sstream>

#include <gtest/gtest.h>

#include "weft/tests/sim/runs.h"

namespace weft::sim {
namespace {

TEST(Simulator, TwoThousandRunsHoldEveryInvariant) {
  std::ostringstream out;
  RunOptions options;
  options.runs = 2000;
  options.first_seed = 7'000'000;
  EXPECT_EQ(run_and_report(options, false, out), 0) << out.str();
}

TEST(Simulator, SeedsThatOnceFailedHold) {
  std::ostringstream out;
  EXPECT_EQ(replay(WEFT_SOURCE_DIR "/tests/sim/seeds.txt", out), 0) << out.str();
}

TEST(Simulator, OneSeedIsOneRun) {
  Report report;
  for (uint64_t seed = 1; seed <= 20; ++seed) {
    const RunResult first = run_seed(seed, report);
    const RunResult second = run_seed(seed, report);
    EXPECT_EQ(first.events, second.events);
    EXPECT_EQ(first.hash, second.hash) << "seed " << seed;
    EXPECT_NE(first.hash, run_seed(seed + 1, report).hash);
  }
}

TEST(Simulator, TheTraceChangesNothing) {
  Report report;
  for (uint64_t seed = 1; seed <= 20; ++seed) {
    Trace words(true);
    World world(seed, report, words);
    EXPECT_TRUE(world.run().invariant.empty());
    EXPECT_EQ(world.hash(), run_seed(seed, report).hash);
  }
}

// A fault that hits nothing proves nothing.
TEST(Simulator, EveryFaultHasEffects) {
  Report report;
  for (uint64_t seed = 1; seed <= 2000; ++seed) run_seed(seed, report);
  for (size_t i = 0; i < kFaults; ++i) {
    EXPECT_GE(report.effective[i], 20) << name_of(static_cast<Fault>(i));
  }
  for (const Effect effect :
       {Effect::kFalseVerdicts, Effect::kFenced, Effect::kStaleMessages, Effect::kResultsLost,
        Effect::kCallsQueued, Effect::kCreationsCancelled, Effect::kPassesAborted,
        Effect::kDiscoveries, Effect::kContextsRefused}) {
    EXPECT_GT(report.effects[static_cast<size_t>(effect)], 0) << name_of(effect);
  }
}

}  // namespace
}  // namespace weft::sim
