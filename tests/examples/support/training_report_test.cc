#include "weft/examples/support/training_report.h"

#include <chrono>
#include <filesystem>
#include <string>
#include <unistd.h>
#include <vector>

#include <gmock/gmock.h>
#include <gtest/gtest.h>

namespace weft::examples {
namespace {

namespace fs = std::filesystem;

class TrainingReportTest : public ::testing::Test {
 protected:
  TrainingReportTest() {
    std::string pattern = (fs::temp_directory_path() / "weft_training_report_XXXXXX").string();
    folder_ = ::mkdtemp(pattern.data());
  }
  ~TrainingReportTest() override { fs::remove_all(folder_); }

  TrainingReport::Options options() const {
    return {.title = "a run", .folder = (folder_ / "out").string(), .epochs = 2, .pictures = 100};
  }
  std::vector<CurvePoint> written() const {
    Curves curves("");
    EXPECT_TRUE(curves.read_csv((folder_ / "out/curves.csv").string(), 1'000'000).ok());
    return curves.points();
  }
  std::vector<int64_t> steps_written() const {
    std::vector<int64_t> steps;
    for (const CurvePoint& point : written()) steps.push_back(point.step);
    return steps;
  }

  fs::path folder_;
  ManualClock clock_;
};

TEST_F(TrainingReportTest, WritesEveryTenthStepAndEachAccuracy) {
  TrainingReport report(options(), clock_);
  for (int64_t step = 1; step <= 25; ++step) report.note_step(step, 0.04 * step, 2.0, false);
  clock_.advance(std::chrono::seconds(3));
  report.note_accuracy(25, 1, 0.75);
  report.write_curves();
  EXPECT_THAT(steps_written(), ::testing::ElementsAre(10, 20, 25));
  EXPECT_EQ(written().back().accuracy, 0.75);
  EXPECT_EQ(written().back().seconds, 3);
  EXPECT_TRUE(fs::exists(folder_ / "out/curves.png"));
  EXPECT_EQ(report.last_line(0.75, 3), "test accuracy 0.7500 after 2 epochs, 3 workers, 3.0 s");
}

TEST_F(TrainingReportTest, GoesBackWithTheRun) {
  TrainingReport report(options(), clock_);
  for (int64_t step = 1; step <= 40; ++step) report.note_step(step, 0.02 * step, 2.0, false);
  report.go_back(25);
  for (int64_t step = 26; step <= 30; ++step) report.note_step(step, 0.02 * step, 2.0, false);
  report.write_curves();
  EXPECT_THAT(steps_written(), ::testing::ElementsAre(10, 20, 30));
}

TEST_F(TrainingReportTest, ContinuesTheCurvesAndTheTimeOfAnInterruptedRun) {
  {
    TrainingReport report(options(), clock_);
    report.note_step(10, 0.5, 2.0, false);
    clock_.advance(std::chrono::seconds(7));
    report.note_accuracy(20, 1, 0.5);
    report.note_step(30, 1.5, 1.0, false);
    report.write_curves();
  }
  TrainingReport report(options(), clock_);
  report.resume(20, 1);
  clock_.advance(std::chrono::seconds(2));
  report.note_step(30, 1.5, 1.5, false);
  report.write_curves();
  EXPECT_THAT(steps_written(), ::testing::ElementsAre(10, 20, 30));
  EXPECT_EQ(written().back().loss, 1.5);
  EXPECT_EQ(written().back().seconds, 9);
}

}  // namespace
}  // namespace weft::examples
