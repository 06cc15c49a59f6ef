#include "weft/worker/stop_request.h"

#include <cstdlib>
#include <signal.h>

#include <gtest/gtest.h>

namespace weft {
namespace {

// Each test runs in a process of its own, because a request cannot be taken back.
void exit_with(bool good) { std::_Exit(good ? 0 : 1); }

bool blocks_after(int signals) {
  for (int i = 0; i < signals; ++i) raise(SIGTERM);
  return true;
}

TEST(StopRequestDeathTest, WithoutThisFileSigtermEndsTheProcess) {
  EXPECT_EXIT(exit_with(blocks_after(1)), ::testing::KilledBySignal(SIGTERM), "");
}

TEST(StopRequestDeathTest, TheFirstSigtermAsksAndTheSecondEnds) {
  EXPECT_EXIT(
      {
        if (stop_requested()) exit_with(false);
        raise(SIGTERM);
        exit_with(stop_requested() && stop_requested());
      },
      ::testing::ExitedWithCode(0), "");
  EXPECT_EXIT(
      {
        expect_stop_requests();
        exit_with(blocks_after(2));
      },
      ::testing::KilledBySignal(SIGTERM), "");
}

TEST(StopRequestDeathTest, TheFutureIsCompleteAfterTheSignal) {
  EXPECT_EXIT(
      {
        const Future<void> before = stop_request();
        if (before.done()) exit_with(false);
        raise(SIGTERM);
        before.wait();
        stop_request().wait();
        exit_with(true);
      },
      ::testing::ExitedWithCode(0), "");
}

TEST(StopRequestDeathTest, ARequestBeforeTheFirstFutureIsNotLost) {
  EXPECT_EXIT(
      {
        expect_stop_requests();
        raise(SIGTERM);
        stop_request().wait();
        exit_with(true);
      },
      ::testing::ExitedWithCode(0), "");
}

}  // namespace
}  // namespace weft
