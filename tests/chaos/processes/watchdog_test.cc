// The watchdog terminates a process whose wait is far too long and writes the stacks of its
// threads. It leaves other waits alone.
#include "weft/tests/chaos/processes/watchdog.h"

#include <chrono>
#include <cstdlib>
#include <thread>

#include <gtest/gtest.h>

#include "weft/async/future.h"
#include "weft/tests/chaos/oracle/ledger.h"

namespace weft::chaos {
namespace {

using std::chrono::milliseconds;

void wait_for(milliseconds time) {
  const Promise<void> never(nullptr);
  (void)never.future().wait_for(time);
}

class WatchdogDeathTest : public ::testing::Test {
 protected:
  // Threads and fork do not mix, so the death test starts a process of its own.
  void SetUp() override { GTEST_FLAG_SET(death_test_style, "threadsafe"); }
};

TEST_F(WatchdogDeathTest, DumpsAllStacksAndEndsTheProcessAfterTwiceTheBound) {
  EXPECT_EXIT(
      {
        Watchdog watchdog;
        std::thread other([] { wait_for(std::chrono::seconds(60)); });
        const Watchdog::Scope wait(watchdog, "the test", milliseconds(100));
        other.join();
      },
      ::testing::ExitedWithCode(kExitHang),
      "the test 0 waits for 0.*its bound is 0.1 s(.|\n)*thread");
}

TEST_F(WatchdogDeathTest, LeavesAWaitAloneThatEndsInTime) {
  EXPECT_EXIT(
      {
        Watchdog watchdog;
        const uint64_t wait = watchdog.begin("the test", 7, milliseconds(100));
        wait_for(milliseconds(50));
        watchdog.end(wait);
        wait_for(milliseconds(400));
        std::_Exit(0);
      },
      ::testing::ExitedWithCode(0), "");
}

}  // namespace
}  // namespace weft::chaos
