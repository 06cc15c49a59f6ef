// Simulated runs of whole workers. tools/test.sh --all runs more seeds (CMakeLists.txt).
#include <gtest/gtest.h>

#include "absl/strings/str_join.h"
#include "weft/tests/stack_sim/stack_run.h"

namespace weft::sim {
namespace {

void expect_well(const RunOptions& options) {
  const RunReport report = simulate(options);
  EXPECT_TRUE(report.violations.empty())
      << "weft_stack_sim --runs 1 --trace --seed-from " << options.seed << ":\n"
      << absl::StrJoin(report.violations, "\n");
}

TEST(StackSim, RunsWithFaultsKeepWhatIsPromised) {
  for (uint64_t seed = 1; seed <= 100; ++seed) expect_well({.seed = seed});
}

TEST(StackSim, RunsWithoutFaultsEndWell) {
  for (uint64_t seed = 1; seed <= 25; ++seed) expect_well({.seed = seed, .faults = false});
}

TEST(StackSim, ASeedReplaysExactly) {
  for (uint64_t seed = 1; seed <= 20; ++seed) {
    const RunReport first = simulate({.seed = seed}), second = simulate({.seed = seed});
    EXPECT_EQ(first.hash, second.hash) << "seed " << seed;
    EXPECT_EQ(first.events, second.events) << "seed " << seed;
  }
}

}  // namespace
}  // namespace weft::sim
