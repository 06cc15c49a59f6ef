// Some hundred simulated runs of whole workers.
#include <gtest/gtest.h>

#include "absl/strings/str_join.h"
#include "weft/tests/stack_sim/stack_run.h"

#if defined(__SANITIZE_ADDRESS__)
#define WEFT_TEST_ASAN 1
#elif defined(__has_feature)
#define WEFT_TEST_ASAN __has_feature(address_sanitizer)
#else
#define WEFT_TEST_ASAN 0
#endif

namespace weft::sim {
namespace {

// With AddressSanitizer a run takes about five times as long.
constexpr uint64_t kFaultySeeds = WEFT_TEST_ASAN ? 100 : 400;

void expect_well(const RunOptions& options) {
  const RunReport report = simulate(options);
  EXPECT_TRUE(report.violations.empty())
      << "weft_stack_sim --runs 1 --trace --seed-from " << options.seed << ":\n"
      << absl::StrJoin(report.violations, "\n");
}

TEST(StackSim, RunsWithFaultsKeepWhatIsPromised) {
  for (uint64_t seed = 1; seed <= kFaultySeeds; ++seed) expect_well({.seed = seed});
}

TEST(StackSim, RunsWithoutFaultsEndWell) {
  for (uint64_t seed = 1; seed <= 50; ++seed) expect_well({.seed = seed, .faults = false});
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
