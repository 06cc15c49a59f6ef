// The optimizer's step under seeded random schedules.
//
// The owners' incarnations that outlive a step have all applied it exactly once with one clip
// factor, or none has. And what the caller was told is true. A failing seed is in the message;
// WEFT_STEP_SEED=n runs that seed only.
#include <cstdlib>

#include <gtest/gtest.h>

#include "weft/tests/dist_optim/step_world.h"

namespace weft::dist_optim_internal {
namespace {

TEST(StepCoreRandom, OwnersThatOutliveAStepApplyItAllOnceOrNone) {
  const char* const one = std::getenv("WEFT_STEP_SEED");
  const uint64_t first = one == nullptr ? 1 : std::strtoull(one, nullptr, 10);
  const uint64_t last = one == nullptr ? 60'000 : first;
  size_t told = 0, losses = 0, asked = 0, resumed = 0, second_deaths = 0;
  for (uint64_t seed = first; seed <= last && !::testing::Test::HasFailure(); ++seed) {
    SCOPED_TRACE(absl::StrCat("WEFT_STEP_SEED=", seed));
    StepWorld world(seed);
    world.run();
    told += world.steps_told;
    losses += world.losses;
    asked += world.asked;
    resumed += world.resumed;
    second_deaths += world.second_deaths;
  }
  if (one != nullptr) return;
  // Checks that the schedules reach what they are meant to test.
  EXPECT_GT(told, 100'000u);
  EXPECT_GT(losses, 20'000u);
  EXPECT_GT(asked, 20'000u);
  EXPECT_GT(resumed, 500u);
  EXPECT_GT(second_deaths, 2'000u) << "the caller of a step and one of its owners";
}

}  // namespace
}  // namespace weft::dist_optim_internal
