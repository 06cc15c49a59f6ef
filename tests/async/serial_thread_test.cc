#include "weft/async/serial_thread.h"

#include <atomic>
#include <future>
#include <memory>
#include <thread>
#include <vector>

#include <gtest/gtest.h>

#include "weft/base/thread.h"

namespace weft {
namespace {

TEST(SerialThreadTest, RunsTasksInTheOrderInWhichTheyCame) {
  std::vector<int> order;
  {
    SerialThread thread(SerialThread::AtEnd::kRun);
    for (int i = 0; i < 1000; ++i) thread.run([&order, i] { order.push_back(i); });
  }
  ASSERT_EQ(order.size(), 1000u);
  for (int i = 0; i < 1000; ++i) EXPECT_EQ(order[static_cast<size_t>(i)], i);
}

TEST(SerialThreadTest, DropsWhatHasNotBegun) {
  std::promise<void> begun, go;
  std::atomic<int> ran = 0;
  const auto held = std::make_shared<int>(7);
  auto thread = std::make_unique<SerialThread>();
  thread->run([&] {
    begun.set_value();
    go.get_future().wait();
    ++ran;
  });
  thread->run([&ran, held] { ran += 100; });
  begun.get_future().wait();
  std::thread ends([&] { thread.reset(); });
  while (held.use_count() > 1) std::this_thread::yield();  // it is destroyed, unrun
  go.set_value();
  ends.join();
  EXPECT_EQ(ran, 1);
}

TEST(SerialThreadTest, ItsLastHandleMayEndOnItsOwnThread) {
  std::promise<void> after;
  auto thread = std::make_shared<SerialThread>(SerialThread::AtEnd::kRun);
  std::promise<void> go;
  thread->run([&go, thread]() mutable {
    go.get_future().wait();
    thread.reset();
  });
  thread->run([&after] { after.set_value(); });
  thread.reset();
  go.set_value();
  after.get_future().wait();
}

TEST(SerialThreadTest, StartsLaterAndAgainAfterARefusal) {
  SerialThread thread(SerialThread::StartLater{}, SerialThread::AtEnd::kRun, "the mill");
  std::promise<void> ran;
  thread.run([&ran] { ran.set_value(); });
  {
    const ThreadLimit none(0);
    EXPECT_EQ(thread.start().code(), absl::StatusCode::kResourceExhausted);
  }
  EXPECT_FALSE(thread.idle());
  ASSERT_TRUE(thread.start().ok());
  const ThreadLimit none(0);
  EXPECT_TRUE(thread.start().ok());  // it has its thread
  ran.get_future().wait();
  thread.stop();
  EXPECT_TRUE(thread.idle());
}

TEST(SerialThreadTest, EndsWithoutItsThread) {
  const auto held = std::make_shared<int>(7);
  {
    SerialThread thread(SerialThread::StartLater{}, SerialThread::AtEnd::kRun, "the mill");
    thread.run([held] {});
    thread.stop();
    EXPECT_TRUE(thread.start().ok());  // after the end, it starts nothing
  }
  EXPECT_EQ(held.use_count(), 1);
}

TEST(SerialThreadTest, LeavesATaskBehindThatTakesTooLong) {
  std::promise<void> begun, ended;
  const auto go = std::make_shared<std::promise<void>>();
  const auto queued = std::make_shared<int>(7), after = std::make_shared<int>(7);
  {
    SerialThread thread;
    thread.run([&begun, &ended, go] {
      begun.set_value();
      go->get_future().wait();
      ended.set_value();
    });
    thread.run([queued] {});
    begun.get_future().wait();
    thread.stop(std::chrono::milliseconds(1));
    EXPECT_EQ(queued.use_count(), 1);
    EXPECT_FALSE(thread.idle());
    thread.run([after] {});
    EXPECT_EQ(after.use_count(), 1);
  }
  go->set_value();
  ended.get_future().wait();
}

TEST(SerialThreadTest, AStopWithALimitWaitsForATaskThatEndsInTime) {
  std::atomic<bool> ran = false;
  SerialThread thread(SerialThread::AtEnd::kRun);
  thread.run([&] { ran = true; });
  thread.stop(std::chrono::hours(1));
  EXPECT_TRUE(ran);
  EXPECT_TRUE(thread.idle());
}

}  // namespace
}  // namespace weft
