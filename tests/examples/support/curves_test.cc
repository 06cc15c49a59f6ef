#include "weft/examples/support/curves.h"

#include <cmath>
#include <filesystem>
#include <fstream>
#include <gd.h>
#include <iterator>
#include <limits>
#include <memory>
#include <unistd.h>

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "weft/examples/support/canvas.h"

namespace weft::examples {
namespace {

namespace fs = std::filesystem;
using testing::AllOf;
using testing::DoubleEq;
using testing::ElementsAre;
using testing::HasSubstr;

constexpr int kLossBlue = 0x1F5FA8;
constexpr int kAccuracyOrange = 0xD4641C;

class CurvesTest : public testing::Test {
 protected:
  CurvesTest() {
    std::string pattern = (fs::temp_directory_path() / "weft_curves_XXXXXX").string();
    folder_ = ::mkdtemp(pattern.data());
  }
  ~CurvesTest() override { fs::remove_all(folder_); }
  std::string path(const char* name) const { return (folder_ / name).string(); }
  static std::string read(const std::string& path) {
    std::ifstream in(path, std::ios::binary);
    return {std::istreambuf_iterator<char>(in), {}};
  }

  fs::path folder_;
};

// How many pixels of a picture have exactly this colour, between two columns.
int count_pixels(const std::string& png, int color, int from, int to) {
  const std::unique_ptr<gdImage, void (*)(gdImagePtr)> image(
      gdImageCreateFromPngPtr(static_cast<int>(png.size()), const_cast<char*>(png.data())),
      gdImageDestroy);
  if (!image) return -1;
  int count = 0;
  for (int y = 76; y < gdImageSY(image.get()) - 58; ++y) {
    for (int x = from; x < to; ++x) {
      count += (gdImageGetTrueColorPixel(image.get(), x, y) & 0xFFFFFF) == color ? 1 : 0;
    }
  }
  return count;
}

Curves falling(int points) {
  Curves curves("A run");
  for (int i = 0; i < points; ++i) {
    curves.add({.step = i * 10,
                .epoch = i / 47.0,
                .loss = 2.0 / (1 + i),
                .accuracy = {},
                .seconds = i / 2.0});
  }
  curves.add({.step = points * 10, .epoch = 1, .loss = {}, .accuracy = 0.8, .seconds = 50});
  curves.add({.step = points * 12, .epoch = 2, .loss = {}, .accuracy = 0.9, .seconds = 60});
  return curves;
}

TEST_F(CurvesTest, WritesOneLineForEveryPoint) {
  Curves curves("A run");
  curves.add({.step = 20, .epoch = 0.5, .loss = 0.25, .accuracy = {}, .seconds = 1.5});
  curves.add({.step = 40, .epoch = 1, .loss = {}, .accuracy = 0.875, .seconds = 3});
  ASSERT_TRUE(curves.write_csv(path("c.csv")).ok());
  EXPECT_EQ(read(path("c.csv")),
            "step,epoch,loss,accuracy,seconds\n20,0.5,0.25,,1.5\n40,1,,0.875,3\n");
}

TEST_F(CurvesTest, AResumedRunTakesOverWhatCameBeforeItsCheckpoint) {
  const Curves before = falling(20);
  ASSERT_TRUE(before.write_csv(path("c.csv")).ok());
  Curves after("A run");
  ASSERT_TRUE(after.read_csv(path("c.csv"), 100).ok());
  ASSERT_EQ(after.points().size(), 11u);
  EXPECT_EQ(after.points().back().step, 100);
  EXPECT_NEAR(*after.points()[1].loss, 1.0, 1e-5);
  EXPECT_FALSE(after.points()[1].accuracy.has_value());
}

TEST_F(CurvesTest, NamesFileAndLineOfACsvFileThatIsNotOurs) {
  Curves curves("A run");
  EXPECT_EQ(curves.read_csv(path("none.csv"), 10).code(), absl::StatusCode::kNotFound);
  std::ofstream(path("c.csv")) << "a,b\n";
  EXPECT_THAT(curves.read_csv(path("c.csv"), 10).ToString(),
              AllOf(HasSubstr("c.csv"), HasSubstr("line 1")));
  for (const char* line : {"1,2,3,4", "1,2,3,4,5,6", "x,1,,,1", "1,,,,1", "1,1,y,,1", ""}) {
    std::ofstream(path("c.csv")) << "step,epoch,loss,accuracy,seconds\n1,0,,,1\n" << line << "\n";
    EXPECT_THAT(curves.read_csv(path("c.csv"), 10).ToString(), HasSubstr("line 3")) << line;
  }
  EXPECT_TRUE(curves.points().empty());
}

TEST_F(CurvesTest, DrawsBothCurvesInTheirPanels) {
  ASSERT_TRUE(falling(100).write_png(path("c.png")).ok());
  const std::string png = read(path("c.png"));
  EXPECT_EQ(png.substr(1, 3), "PNG");
  EXPECT_GT(count_pixels(png, kLossBlue, 78, 570), 100);
  EXPECT_EQ(count_pixels(png, kLossBlue, 676, 1170), 0);
  EXPECT_GT(count_pixels(png, kAccuracyOrange, 676, 1170), 100);
  EXPECT_EQ(count_pixels(png, kAccuracyOrange, 78, 570), 0);
}

TEST_F(CurvesTest, DrawsNothingOnePointAndValuesThatAreNoNumbers) {
  Curves curves("A run");
  ASSERT_TRUE(curves.write_png(path("c.png")).ok());
  EXPECT_EQ(count_pixels(read(path("c.png")), kLossBlue, 78, 570), 0);
  curves.add({.step = 0, .epoch = 0, .loss = 1.0, .accuracy = 0.5, .seconds = 0});
  const double nan = std::numeric_limits<double>::quiet_NaN();
  const double infinite = std::numeric_limits<double>::infinity();
  curves.add({.step = 1, .epoch = 0, .loss = nan, .accuracy = nan, .seconds = 0});
  curves.add({.step = 2, .epoch = 0, .loss = infinite, .accuracy = -infinite, .seconds = 0});
  ASSERT_TRUE(curves.write_png(path("c.png")).ok());
  EXPECT_GT(count_pixels(read(path("c.png")), kLossBlue, 70, 570), 3);
}

TEST_F(CurvesTest, PutsTicksAtRoundValues) {
  EXPECT_THAT(axis_ticks(0, 1, 5), ElementsAre(DoubleEq(0), DoubleEq(.2), DoubleEq(.4),
                                               DoubleEq(.6), DoubleEq(.8), DoubleEq(1)));
  EXPECT_THAT(axis_ticks(0.83, 0.91, 5),
              ElementsAre(DoubleEq(.84), DoubleEq(.86), DoubleEq(.88), DoubleEq(.9)));
  EXPECT_THAT(axis_ticks(0, 1407, 5), ElementsAre(0, 500, 1000));
  EXPECT_FALSE(std::signbit(axis_ticks(-1e-12, 1, 5).front()));
  EXPECT_EQ(axis_ticks(3, 3, 5).size(), 1u);
}

}  // namespace
}  // namespace weft::examples
