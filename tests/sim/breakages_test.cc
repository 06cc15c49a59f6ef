// The simulator finds every broken rule of the table within a bounded number of seeded runs. Runs
// meet the moment of some rules too seldom. For those the core's own test must fail, which the test
// sim/core_tests checks.
#include <gtest/gtest.h>

#include "weft/tests/sim/runs.h"

namespace weft::sim {
namespace {

constexpr uint64_t kMostRuns = 5000;

class BrokenRule : public ::testing::TestWithParam<Rule> {};

std::vector<Rule> found_by_runs() {
  std::vector<Rule> all;
  for (const Rule& rule : rules()) {
    if (rule.test == nullptr) all.push_back(rule);
  }
  return all;
}
INSTANTIATE_TEST_SUITE_P(Cores, BrokenRule, ::testing::ValuesIn(found_by_runs()),
                         [](const auto& info) { return std::string(info.param.name); });

TEST_P(BrokenRule, IsFound) {
  ASSERT_TRUE(break_rule(GetParam().name));
  Report report;
  uint64_t seed = 1;
  while (seed <= kMostRuns &&
         run_seed(GetParam().profile, seed, report).violation.invariant.empty()) {
    ++seed;
  }
  mend_rules();
  EXPECT_LE(seed, kMostRuns) << GetParam().broken;
}

TEST(Breakages, UnknownOnesAreRefused) { EXPECT_FALSE(break_rule("no such rule")); }

TEST(Breakages, WithoutOneTheSameCoresHold) {
  Report report;
  for (size_t profile = 0; profile < kProfiles; ++profile) {
    for (uint64_t seed = 1; seed <= 200; ++seed) {
      EXPECT_EQ(run_seed(static_cast<Profile>(profile), seed, report).violation.invariant, "")
          << kProfileNames[profile] << ", seed " << seed;
    }
  }
}

}  // namespace
}  // namespace weft::sim
