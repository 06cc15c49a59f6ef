#include <cmath>
#include <filesystem>
#include <fstream>
#include <limits>
#include <unistd.h>

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "absl/strings/str_cat.h"
#include "weft/examples/ddp_mnist/loss_curve.h"

namespace weft::examples {
namespace {

using ::testing::HasSubstr;

constexpr int64_t kAll = std::numeric_limits<int64_t>::max();

class LossCurveTest : public ::testing::Test {
 protected:
  void TearDown() override { std::filesystem::remove(path_); }

  void leave(const std::string& text) const { std::ofstream(path_) << text; }
  std::string difference(const LossCurve& curve) const {
    const absl::StatusOr<std::string> text = curve.compare(path_);
    return text.ok() ? *text : text.status().ToString();
  }

  const std::string path_ =
      std::filesystem::temp_directory_path() / absl::StrCat("weft_loss_curve_test.", getpid());
};

TEST_F(LossCurveTest, GivesBackTheVeryNumbersThatWereWritten) {
  LossCurve curve;
  for (int64_t step = 1; step <= 30; ++step) curve.add(step, std::exp(static_cast<double>(-step)));
  ASSERT_TRUE(curve.write(path_).ok());
  EXPECT_EQ(difference(curve), absl::StrCat("greatest difference to ", path_,
                                            ": 0.0e+00 in the first 20 steps, 0.0e+00 in all 30"));
}

TEST_F(LossCurveTest, FindsTheGreatestDifferenceOfTheFirstStepsAndOfAll) {
  LossCurve curve;
  for (int64_t step = 1; step <= 25; ++step) curve.add(step, 1);
  ASSERT_TRUE(curve.write(path_).ok());
  curve.add(3, 1.25);
  curve.add(20, 0.5);
  curve.add(21, 3);
  curve.add(22, 2);
  curve.add(26, 100);  // not in the file
  EXPECT_THAT(difference(curve), HasSubstr("5.0e-01 in the first 20 steps, 2.0e+00 in all 25"));
}

TEST_F(LossCurveTest, ALossThatIsNoNumberIsNotEqualToAny) {
  LossCurve curve;
  curve.add(1, 1);
  curve.add(2, 1);
  ASSERT_TRUE(curve.write(path_).ok());
  curve.add(1, std::nan(""));
  EXPECT_THAT(difference(curve), HasSubstr("inf in the first 2 steps, inf in all 2"));
}

TEST_F(LossCurveTest, TakesOverTheStepsBeforeTheOneToGoOnFrom) {
  leave("1 1.5\n2 2.5\n3 3.5\n");
  LossCurve curve;
  ASSERT_TRUE(curve.read(path_, 2).ok());
  curve.add(3, 4);
  EXPECT_THAT(difference(curve), HasSubstr("5.0e-01 in all 3"));
  ASSERT_TRUE(curve.read(path_, kAll).ok());
  EXPECT_THAT(difference(curve), HasSubstr("0.0e+00 in all 3"));
}

TEST_F(LossCurveTest, NamesAFileThatIsMissingOrOfSomethingElse) {
  LossCurve curve;
  curve.add(1, 1);
  EXPECT_THAT(difference(curve), HasSubstr(absl::StrCat("NOT_FOUND: cannot open ", path_)));
  leave("2 1.5\n");
  EXPECT_THAT(difference(curve), HasSubstr(absl::StrCat(path_, " has none of this run's steps")));
  leave("1 1.5\nstep two\n");
  EXPECT_THAT(difference(curve), HasSubstr(absl::StrCat(path_, " is no file of losses")));
  EXPECT_THAT(curve.write(path_ + "/nowhere").ToString(), HasSubstr(path_));
}

}  // namespace
}  // namespace weft::examples
