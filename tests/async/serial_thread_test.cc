#include "weft/async/serial_thread.h"

#include <atomic>
#include <future>
#include <memory>
#include <thread>
#include <vector>

#include <gtest/gtest.h>

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

}  // namespace
}  // namespace weft
