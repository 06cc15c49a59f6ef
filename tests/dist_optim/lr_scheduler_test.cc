#include "weft/dist_optim/lr_scheduler.h"

#include <gtest/gtest.h>

namespace weft {
namespace {

TEST(LrSchedule, StepFallsAtItsMultiples) {
  const LrSchedule schedule = step_lr(10, 0.5);
  EXPECT_EQ(schedule(0), 1.0);
  EXPECT_EQ(schedule(9), 1.0);
  EXPECT_EQ(schedule(10), 0.5);
  EXPECT_EQ(schedule(29), 0.25);
}

TEST(LrSchedule, ExponentialFallsEveryStep) {
  EXPECT_EQ(exponential_lr(0.5)(0), 1.0);
  EXPECT_EQ(exponential_lr(0.5)(3), 0.125);
}

TEST(LrSchedule, CosineFallsToItsFloorAndStaysThere) {
  const LrSchedule schedule = cosine_lr(100, 0.2);
  EXPECT_DOUBLE_EQ(schedule(0), 1.0);
  EXPECT_DOUBLE_EQ(schedule(50), 0.6);
  EXPECT_DOUBLE_EQ(schedule(100), 0.2);
  EXPECT_DOUBLE_EQ(schedule(1000), 0.2);
}

TEST(LrSchedule, WarmupRisesThenHandsOver) {
  const LrSchedule schedule = warmup_lr(4, exponential_lr(0.5), 0.2);
  EXPECT_DOUBLE_EQ(schedule(0), 0.2);
  EXPECT_DOUBLE_EQ(schedule(2), 0.6);
  EXPECT_DOUBLE_EQ(schedule(4), 1.0);
  EXPECT_DOUBLE_EQ(schedule(5), 0.5);
}

TEST(LrSchedule, RefusesEmptyPeriods) {
  EXPECT_THROW(step_lr(0), std::invalid_argument);
  EXPECT_THROW(cosine_lr(0), std::invalid_argument);
  EXPECT_THROW(warmup_lr(0), std::invalid_argument);
}

}  // namespace
}  // namespace weft
