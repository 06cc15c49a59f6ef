#include "weft/tests/chaos/processes/process_threads.h"

#include <atomic>
#include <filesystem>
#include <system_error>
#include <thread>
#include <unistd.h>

#include <gtest/gtest.h>

#include "absl/strings/str_cat.h"

namespace weft::chaos {
namespace {

bool gets_a_thread() {
  try {
    std::thread([] {}).join();
    return true;
  } catch (const std::system_error&) {
    return false;
  }
}

TEST(ProcessThreadsTest, TheKernelRefusesFurtherThreadsUntilTheLimitIsLifted) {
  if (const absl::Status able = can_limit_threads(); !able.ok()) GTEST_SKIP() << able;
  ASSERT_TRUE(gets_a_thread());
  const absl::Status limited = limit_threads(::getpid(), 1);
  ASSERT_TRUE(limited.ok()) << limited;
  std::atomic<bool> over{false};
  std::thread one([&] { over.wait(false); });
  const bool two = gets_a_thread();
  lift_thread_limit(::getpid());
  over = true;
  over.notify_all();
  one.join();
  EXPECT_FALSE(two);
  EXPECT_TRUE(gets_a_thread());
  EXPECT_FALSE(
      std::filesystem::exists(absl::StrCat("/sys/fs/cgroup/pids/weft-chaos-", ::getpid())));
}

TEST(ProcessThreadsTest, TheLimitOfADeadProcessIsLifted) {
  lift_thread_limit(0x7ffffff0);  // no such process
}

}  // namespace
}  // namespace weft::chaos
