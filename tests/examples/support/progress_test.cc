#include "weft/examples/support/progress.h"

#include <chrono>
#include <cstdlib>
#include <string>
#include <vector>

#include <gmock/gmock.h>
#include <gtest/gtest.h>

namespace weft::examples {
namespace {

using std::chrono::milliseconds;
using std::chrono::seconds;
using testing::ElementsAre;
using testing::EndsWith;
using testing::HasSubstr;
using testing::Not;
using testing::StartsWith;

class ProgressTest : public testing::Test {
 protected:
  Progress::Options options(bool terminal) {
    Progress::Options options;
    options.label = "train";
    options.total = 60'000;
    options.terminal = terminal;
    options.columns = [this] { return columns_; };
    return options;
  }
  Progress::Sink sink() {
    return [this](std::string_view text) { written_.emplace_back(text); };
  }
  // The columns that a bar occupies: characters instead of bytes, without control sequences.
  static size_t width(const std::string& line) {
    size_t count = 0;
    for (size_t i = 0; i < line.size(); ++i) {
      if (line[i] == '\r') continue;
      if (line[i] == '\x1b') {
        while (!std::isalpha(static_cast<unsigned char>(line[i]))) ++i;
        continue;
      }
      count += (line[i] & 0xC0) != 0x80 ? 1 : 0;
    }
    return count;
  }

  ManualClock clock_;
  int columns_ = 80;
  std::vector<std::string> written_;
};

TEST_F(ProgressTest, WritesPlainLinesAtTheInterval) {
  Progress progress(options(false), clock_, sink());
  for (int i = 1; i <= 60; ++i) {
    clock_.advance(milliseconds(200));
    progress.update(i * 1000, "loss 0.31");
  }
  progress.finish();
  EXPECT_THAT(written_,
              ElementsAre("train 25,000/60,000 (41%), 5,000 images/s, 0:07 left, loss 0.31\n",
                          "train 50,000/60,000 (83%), 5,000 images/s, 0:02 left, loss 0.31\n",
                          "train 60,000/60,000 (100%), 5,000 images/s, loss 0.31\n"));
}

TEST_F(ProgressTest, RedrawsAtMostTenTimesASecond) {
  Progress progress(options(true), clock_, sink());
  for (int i = 1; i <= 1000; ++i) {
    clock_.advance(milliseconds(1));
    progress.update(i);
  }
  EXPECT_LE(written_.size(), 11u);
  EXPECT_GE(written_.size(), 9u);
}

TEST_F(ProgressTest, KeepsToOneLineOfTheTerminal) {
  Progress progress(options(true), clock_, sink());
  for (columns_ = 1; columns_ < 200; ++columns_) {
    clock_.advance(seconds(1));
    progress.update(columns_ * 100, "loss 0.31, accuracy 88.2%");
    EXPECT_THAT(written_.back(), StartsWith("\r\x1b[K"));
    EXPECT_THAT(written_.back(), Not(HasSubstr("\n")));
    EXPECT_LT(width(written_.back()), static_cast<size_t>(std::max(columns_, 2)));
  }
  EXPECT_THAT(written_.back(), HasSubstr("loss 0.31"));
}

TEST_F(ProgressTest, FillsTheBarInProportion) {
  Progress::Options half = options(true);
  half.utf8 = true;
  columns_ = 120;
  Progress progress(half, clock_, sink());
  clock_.advance(seconds(1));
  progress.update(30'000);
  std::string full;
  std::string open;
  for (int i = 0; i < 20; ++i) full += "━", open += "─";
  EXPECT_THAT(written_.back(), HasSubstr("train " + full + open + "  50%  30,000/60,000"));
}

TEST_F(ProgressTest, UsesColourOnlyWhenToldTo) {
  for (const bool color : {false, true}) {
    Progress::Options with = options(true);
    with.color = color;
    Progress progress(with, clock_, sink());
    progress.update(30'000);
    EXPECT_EQ(written_.back().find("\x1b[36m") != std::string::npos, color);
    EXPECT_EQ(written_.back().find("\x1b[0m") != std::string::npos, color);
  }
}

TEST_F(ProgressTest, CountsTheRateOfTheLastSecondsOnly) {
  Progress progress(options(false), clock_, sink());
  for (int i = 1; i <= 20; ++i) {
    clock_.advance(seconds(1));
    progress.update(i * 10);
  }
  for (int i = 1; i <= 20; ++i) {
    clock_.advance(seconds(1));
    progress.update(200 + i * 1000);
  }
  EXPECT_THAT(written_.back(), HasSubstr(" 1,000 images/s, 0:40 left"));
}

TEST_F(ProgressTest, LeavesWhatAnEarlierRunDidOutOfTheRate) {
  Progress::Options resumed = options(false);
  resumed.start = 40'000;
  Progress progress(resumed, clock_, sink());
  clock_.advance(seconds(5));
  progress.update(45'000);
  EXPECT_THAT(written_.back(), HasSubstr(" 1,000 images/s, 0:15 left"));
}

TEST_F(ProgressTest, PrintsLinesAboveTheBar) {
  Progress progress(options(true), clock_, sink());
  progress.update(100);
  written_.clear();
  progress.print("worker2 is dead");
  EXPECT_EQ(written_[0], "\r\x1b[Kworker2 is dead\n");
  EXPECT_THAT(written_[1], StartsWith("\r\x1b[Ktrain "));
}

TEST_F(ProgressTest, FinishesOnceAndSaysNothingAfterwards) {
  {
    Progress progress(options(true), clock_, sink());
    progress.update(60'000);
    progress.finish();
    EXPECT_THAT(written_.back(), EndsWith("\n"));
    written_.clear();
    clock_.advance(seconds(9));
    progress.update(1);
    progress.finish();
  }
  EXPECT_TRUE(written_.empty());
}

TEST_F(ProgressTest, SurvivesAnEmptyJobAndNumbersOutOfRange) {
  Progress::Options empty = options(false);
  empty.total = 0;
  Progress progress(empty, clock_, sink());
  progress.update(7);
  progress.finish();
  EXPECT_THAT(written_.back(), HasSubstr("0/0 (100%)"));
}

TEST_F(ProgressTest, ReadsNoColorAndLocale) {
  ::setenv("LC_ALL", "de_DE.UTF-8", 1);
  EXPECT_TRUE(Progress::Options::for_stdout("x", 1).utf8);
  ::setenv("LC_ALL", "C", 1);
  EXPECT_FALSE(Progress::Options::for_stdout("x", 1).utf8);
  ::setenv("NO_COLOR", "1", 1);
  EXPECT_FALSE(Progress::Options::for_stdout("x", 1).color);
  ::unsetenv("LC_ALL");
  ::unsetenv("NO_COLOR");
}

TEST_F(ProgressTest, SpellsNumbersAndTimes) {
  EXPECT_EQ(with_commas(0), "0");
  EXPECT_EQ(with_commas(999), "999");
  EXPECT_EQ(with_commas(1000), "1,000");
  EXPECT_EQ(with_commas(-1234567), "-1,234,567");
  EXPECT_EQ(as_clock(0.4), "0:00");
  EXPECT_EQ(as_clock(75.4), "1:15");
  EXPECT_EQ(as_clock(3700), "1:01:40");
  EXPECT_EQ(as_clock(1e12), "--:--");
}

}  // namespace
}  // namespace weft::examples
