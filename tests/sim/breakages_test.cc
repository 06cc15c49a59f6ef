// The simulator finds what it is there for: one broken rule of each core, soon.
// `weft_sim_breakages --breakages` tries them all.
#include <gtest/gtest.h>

#include "weft/tests/sim/runs.h"

namespace weft::sim {
namespace {

class BrokenRule : public ::testing::TestWithParam<const char*> {};
INSTANTIATE_TEST_SUITE_P(Cores, BrokenRule,
                         ::testing::Values("duplicates_accepted", "not_resent",
                                           "sent_call_counts_as_unsent", "freed_with_shares",
                                           "dead_user_not_reaped", "child_accept_not_sent",
                                           "released_context_made_again", "commits_before_quiet",
                                           "aborted_stage_merged"),
                         [](const auto& info) { return std::string(info.param); });

TEST_P(BrokenRule, IsFound) {
  ASSERT_TRUE(break_rule(GetParam()));
  Report report;
  uint64_t seed = 1;
  while (seed <= 500 && run_seed(seed, report).violation.invariant.empty()) ++seed;
  mend_rules();
  EXPECT_LE(seed, 500);
}

TEST(Breakages, UnknownOnesAreRefused) { EXPECT_FALSE(break_rule("no such rule")); }

TEST(Breakages, WithoutOneTheSameCoresHold) {
  Report report;
  for (uint64_t seed = 1; seed <= 200; ++seed) {
    EXPECT_EQ(run_seed(seed, report).violation.invariant, "") << "seed " << seed;
  }
}

}  // namespace
}  // namespace weft::sim
