#include "weft/ddp/reducer/gradient_buckets.h"

#include <limits>
#include <memory>
#include <string>
#include <vector>

#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <torch/types.h>

#include "absl/strings/str_cat.h"
#include "weft/tests/support/group_world.h"

namespace weft::ddp_internal {
namespace {

using ::testing::ElementsAre;
using ::testing::HasSubstr;
using Group = std::shared_ptr<ProcessGroup>;

class Home final : public GradientHome {
 public:
  Home(size_t count, bool views) : gradients(count), views_(views) {}
  at::Tensor& gradient(size_t parameter) override { return gradients[parameter]; }
  void put(size_t parameter, const at::Tensor& average) override {
    gradients[parameter] = average.clone();
  }
  bool views() const override { return views_; }

  std::vector<at::Tensor> gradients;

 private:
  const bool views_;
};

std::vector<ReducerParameter> parameters_of(const std::vector<int64_t>& lengths) {
  std::vector<ReducerParameter> parameters;
  for (const int64_t length : lengths) {
    parameters.push_back({absl::StrCat("p", parameters.size()), torch::zeros({length}), false});
  }
  return parameters;
}

void average(GradientBuckets& buckets) {
  for (size_t i = 0; i < buckets.size(); ++i) buckets.start(i);
  for (size_t i = 0; i < buckets.size(); ++i) buckets.wait(i);
}

TEST(GradientBucketsTest, AveragesIntoTheHomeOrMakesTheGradientASlice) {
  testing::run_ranks(2, [](const Group& group) {
    for (const bool views : {false, true}) {
      const std::vector<ReducerParameter> parameters = parameters_of({2, 3, 1});
      GradientBuckets buckets(parameters, group, /*check_nans=*/false);
      buckets.allocate({{2}, {1, 0}});
      EXPECT_THAT(buckets.bytes(), ElementsAre(4, 20));
      EXPECT_EQ(buckets.names_in(1), "p1, p0");
      Home home(3, views);
      for (size_t i = 0; i < 3; ++i) {
        home.gradients[i] =
            torch::full_like(parameters[i].variable, 1.0 + static_cast<double>(group->rank()));
        buckets.write(i, /*used=*/true, home);
      }
      average(buckets);
      for (size_t i = 0; i < 3; ++i) {
        buckets.put(i, /*nowhere=*/false, home);
        EXPECT_TRUE(home.gradients[i].eq(1.5).all().item<bool>()) << home.gradients[i];
      }
      EXPECT_EQ(home.gradients[0].is_alias_of(home.gradients[1]), views) << "one bucket";
    }
  });
}

TEST(GradientBucketsTest, AParameterThatNobodyUsedKeepsItsGradient) {
  testing::run_ranks(2, [](const Group& group) {
    const std::vector<ReducerParameter> parameters = parameters_of({2});
    GradientBuckets buckets(parameters, group, /*check_nans=*/false);
    buckets.allocate({{0}});
    Home home(1, /*views=*/true);
    home.gradients[0] = torch::full({2}, 4.0);
    buckets.write(0, /*used=*/true, home);
    average(buckets);
    buckets.put(0, /*nowhere=*/false, home);

    // Now the gradient lies in its bucket, whose content the pass overwrites.
    home.gradients[0].fill_(7.0 + static_cast<double>(group->rank()));
    buckets.write(0, /*used=*/false, home);
    average(buckets);
    buckets.put(0, /*nowhere=*/true, home);
    EXPECT_TRUE(home.gradients[0].eq(7.0 + static_cast<double>(group->rank())).all().item<bool>());
  });
}

TEST(GradientBucketsTest, GradientsLeaveTheBucketsOfALostGroup) {
  testing::run_ranks(1, [](const Group& group) {
    const std::vector<ReducerParameter> parameters = parameters_of({2});
    GradientBuckets buckets(parameters, group, /*check_nans=*/false);
    buckets.allocate({{0}});
    Home home(1, /*views=*/true);
    home.gradients[0] = torch::full({2}, 4.0);
    buckets.write(0, /*used=*/true, home);
    const at::Tensor slice = home.gradients[0];
    parameters[0].variable.mutable_grad() = slice;
    buckets.set_group(group);
    EXPECT_FALSE(parameters[0].variable.grad().is_alias_of(slice));
    EXPECT_TRUE(parameters[0].variable.grad().equal(slice));
  });
}

TEST(GradientBucketsTest, NamesTheFirstAverageThatIsNotFinite) {
  testing::run_ranks(2, [](const Group& group) {
    const std::vector<ReducerParameter> parameters = parameters_of({2, 2});
    GradientBuckets buckets(parameters, group, /*check_nans=*/true);
    buckets.allocate({{0, 1}});
    for (const bool damaged : {true, false}) {
      buckets.begin_pass();
      Home home(2, /*views=*/false);
      for (size_t i = 0; i < 2; ++i) {
        home.gradients[i] = torch::ones({2});
        if (damaged && i == 1 && group->rank() == 0) {
          home.gradients[i][0] = std::numeric_limits<float>::infinity();
        }
        buckets.write(i, /*used=*/true, home);
      }
      average(buckets);
      if (!damaged) {
        EXPECT_EQ(buckets.not_finite(), "");
      } else {
        EXPECT_THAT(buckets.not_finite(), HasSubstr("'p1'"));
        EXPECT_THAT(buckets.not_finite(),
                    HasSubstr(group->rank() == 0 ? "not either" : "own was finite"));
      }
    }
  });
}

}  // namespace
}  // namespace weft::ddp_internal
