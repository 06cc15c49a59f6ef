#include "weft/base/log.h"

#include <string>
#include <thread>
#include <vector>

#include <gtest/gtest.h>

#include "weft/base/mutex.h"

namespace weft {
namespace {

class LogTest : public ::testing::Test {
 protected:
  LogTest() {
    set_log_sink([this](LogLevel level, std::string_view line) {
      MutexLock lock(mutex_);
      lines_.emplace_back(level, line);
    });
  }
  ~LogTest() override {
    set_log_sink(nullptr);
    set_log_level(LogLevel::kWarning);
  }

  std::vector<std::pair<LogLevel, std::string>> lines() {
    MutexLock lock(mutex_);
    return lines_;
  }

 private:
  Mutex mutex_;
  std::vector<std::pair<LogLevel, std::string>> lines_ ABSL_GUARDED_BY(mutex_);
};

TEST_F(LogTest, LinesBelowTheLevelAreDropped) {
  set_log_level(LogLevel::kWarning);
  log_info("quiet");
  log_warning("loud ", 1);
  log_error("louder ", 2.5);
  set_log_level(LogLevel::kInfo);
  log_info("now heard");
  const std::vector<std::pair<LogLevel, std::string>> wanted = {{LogLevel::kWarning, "loud 1"},
                                                                {LogLevel::kError, "louder 2.5"},
                                                                {LogLevel::kInfo, "now heard"}};
  EXPECT_EQ(lines(), wanted);
}

TEST_F(LogTest, ForeignTextBeginsNoLineAndMovesNoCursor) {
  const std::string foreign("worker0'\nweft error: forged \x1b[2J\r\t\x7f\xc2\x9b\0.", 39);
  log_warning("refused '", foreign, "'");
  ASSERT_EQ(lines().size(), 1u);
  const std::string line = lines().front().second;
  EXPECT_EQ(line,
            "refused 'worker0'\\x0aweft error: forged \\x1b[2J\\x0d\\x09\\x7f\\xc2\\x9b\\x00.'");
  EXPECT_EQ(printable(line), line);
}

TEST_F(LogTest, ForeignTextIsShownUpToALimit) {
  log_warning(std::string(1 << 20, 'x'));
  ASSERT_EQ(lines().size(), 1u);
  EXPECT_LT(lines().front().second.size(), 5000u);
  EXPECT_EQ(printable("abcdef", 4), "abcd [2 more bytes]");
}

TEST_F(LogTest, WithoutASinkALineGoesToStandardErrorWithItsLevel) {
  set_log_sink(nullptr);
  ::testing::internal::CaptureStderr();
  log_error("on fire");
  EXPECT_EQ(::testing::internal::GetCapturedStderr(), "weft error: on fire\n");
}

TEST_F(LogTest, LinesOfManyThreadsAllArriveWhole) {
  std::vector<std::thread> threads;
  for (int t = 0; t < 4; ++t) {
    threads.emplace_back([t] {
      for (int i = 0; i < 200; ++i) log_warning(std::string(50, static_cast<char>('a' + t)));
    });
  }
  for (std::thread& thread : threads) thread.join();
  const auto all = lines();
  EXPECT_EQ(all.size(), 800u);
  for (const auto& [level, line] : all) EXPECT_EQ(line, std::string(50, line[0]));
}

TEST_F(LogTest, ALimitLetsOneWarningOfASecondThroughAndCountsTheOthers) {
  WarningLimit limit;
  for (int i = 0; i < 5; ++i) limit.warn("flood");
  ASSERT_EQ(lines().size(), 1u);
  EXPECT_NE(lines()[0].second.find("flood"), std::string::npos);
  WarningLimit other;
  other.warn("another");
  EXPECT_EQ(lines().size(), 2u);
}

}  // namespace
}  // namespace weft
