#include "weft/comm/same_host/callback_threads.h"

#include <atomic>
#include <future>
#include <memory>
#include <stdexcept>
#include <thread>
#include <vector>

#include <gtest/gtest.h>

#include "weft/base/thread.h"

namespace weft::comm_internal {
namespace {

TEST(CallbackThreadsTest, ACallMayWaitForALaterOne) {
  std::vector<std::promise<void>> called(5);
  std::promise<void> all;
  CallbackThreads threads;
  ASSERT_TRUE(threads.ready().ok());
  EXPECT_TRUE(threads.call([&] {
    for (std::promise<void>& one : called) one.get_future().wait();
    all.set_value();
  }));
  for (std::promise<void>& one : called) {
    EXPECT_TRUE(threads.call([&one] { one.set_value(); }));
  }
  all.get_future().wait();
}

TEST(CallbackThreadsTest, StopRunsAllCallsAndThoseThatTheyMake) {
  std::atomic<int> calls = 0;
  std::promise<void> stops;
  std::future<void> stopping = stops.get_future();
  CallbackThreads threads;
  ASSERT_TRUE(threads.ready().ok());
  threads.call([&] {
    stopping.wait();
    for (int i = 0; i < 10; ++i) threads.call([&calls] { ++calls; });
    EXPECT_TRUE(threads.ready().ok());
  });
  for (int i = 0; i < 10; ++i) threads.call([&calls] { ++calls; });
  stops.set_value();
  threads.stop();
  EXPECT_EQ(calls, 20);
}

TEST(CallbackThreadsTest, KnowsItsThreads) {
  std::promise<bool> inside;
  CallbackThreads threads;
  ASSERT_TRUE(threads.ready().ok());
  threads.call([&] { inside.set_value(threads.on_own_thread()); });
  EXPECT_TRUE(inside.get_future().get());
  EXPECT_FALSE(threads.on_own_thread());
}

TEST(CallbackThreadsTest, ACallThatThrowsDoesNotEndItsThread) {
  const ThreadLimit one(1);
  std::promise<void> called;
  CallbackThreads threads;
  ASSERT_TRUE(threads.ready().ok());
  threads.call([] { throw std::runtime_error("a fault"); });
  threads.call([&] { called.set_value(); });
  called.get_future().wait();
}

TEST(CallbackThreadsTest, WithoutAnyThreadItIsNotReady) {
  const ThreadLimit none(0);
  CallbackThreads threads;
  EXPECT_TRUE(absl::IsResourceExhausted(threads.ready()));
}

TEST(CallbackThreadsTest, ARefusedThreadComesWithGrow) {
  auto one = std::make_unique<ThreadLimit>(1);
  std::promise<void> begun, second;
  CallbackThreads threads;
  ASSERT_TRUE(threads.ready().ok());
  threads.call([&] {
    begun.set_value();
    second.get_future().wait();
  });
  begun.get_future().wait();
  EXPECT_FALSE(threads.call([&] { second.set_value(); }));
  EXPECT_FALSE(threads.grow());
  one.reset();
  EXPECT_TRUE(threads.grow());
  threads.stop();
}

}  // namespace
}  // namespace weft::comm_internal
