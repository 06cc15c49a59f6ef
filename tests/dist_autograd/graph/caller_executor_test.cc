#include "weft/dist_autograd/graph/caller_executor.h"

#include <thread>
#include <vector>

#include <gtest/gtest.h>

namespace weft::dist_autograd_internal {
namespace {

TEST(CallerExecutor, RunsTasksInOrderOnTheWaitingThread) {
  ManualExecutor later;
  CallerExecutor caller(later);
  std::vector<int> ran;
  std::thread::id where;
  std::thread other([&] {
    caller.schedule([&] {
      where = std::this_thread::get_id();
      ran.push_back(1);
      caller.schedule([&] {
        ran.push_back(3);
        caller.close();
      });
    });
    caller.schedule([&] { ran.push_back(2); });
  });
  caller.run();
  other.join();
  // The other thread's second task and the task that the first one scheduled may run in either
  // order.
  EXPECT_EQ(where, std::this_thread::get_id());
  EXPECT_EQ(ran.front(), 1);
  later.run_all();
  EXPECT_EQ(ran.size(), 3u);
}

TEST(CallerExecutor, WhatIsLeftGoesToTheOtherExecutor) {
  ManualExecutor later;
  CallerExecutor caller(later);
  int ran = 0;
  caller.schedule([&] { ++ran; });
  caller.close();
  caller.schedule([&] { ++ran; });
  caller.run();  // returns at once
  EXPECT_EQ(ran, 0);
  EXPECT_EQ(later.run_all(), 2u);
  EXPECT_EQ(ran, 2);
}

TEST(CallerExecutor, ItsWaitIsAnnounced) {
  SystemClock clock;
  ThreadExecutor executor(clock, {.threads = 1});
  CallerExecutor caller(executor);
  // The only thread waits in run(). The task that makes run() return still gets a thread.
  executor.schedule([&] { caller.run(); });
  executor.schedule([&] { caller.close(); });
  while (!executor.idle()) std::this_thread::yield();
  executor.stop();
}

}  // namespace
}  // namespace weft::dist_autograd_internal
