#include "weft/worker/stop_request.h"

#include <cstdlib>
#include <signal.h>

#include <gtest/gtest.h>

namespace weft {
namespace {

// Each test runs in a process of its own, because a request cannot be taken back.
void exit_with(bool good) { std::_Exit(good ? 0 : 1); }

TEST(StopRequestDeathTest, SigtermEndsAProcessThatDoesNotAsk) {
  EXPECT_EXIT(
      {
        raise(SIGTERM);
        exit_with(true);
      },
      ::testing::KilledBySignal(SIGTERM), "");
}

TEST(StopRequestDeathTest, SigtermAsksOnceOrTwice) {
  EXPECT_EXIT(
      {
        if (stop_requested()) exit_with(false);
        raise(SIGTERM);
        raise(SIGTERM);
        exit_with(stop_requested() && stop_requested());
      },
      ::testing::ExitedWithCode(0), "");
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
