#include "weft/bench/processes/best_of.h"

#include <deque>

#include <gmock/gmock.h>
#include <gtest/gtest.h>

namespace weft::bench {
namespace {

const Row kCall{"small call", Work::kAdd, 0, "us"};
const Row kTensor{"send 1 MB", Work::kSend, 1 << 20, "GB/s"};
const Row kAfterIdle{"after 2 s idle", Work::kAddAfterIdle, 0, "us"};

// Answers with the given medians, one by one, and writes its calls into the log of all variants.
class Variant final : public Group {
 public:
  Variant(std::string name, bool spins, std::deque<double> medians_us, std::string& log)
      : name_(std::move(name)), spins_(spins), medians_us_(std::move(medians_us)), log_(log) {}
  const std::string& name() const override { return name_; }
  bool spins_when_idle() const override { return spins_; }
  absl::Status start() override {
    log_ += " start " + name_;
    return start_status_;
  }
  void pause() override { log_ += " pause " + name_; }
  void resume() override { log_ += " resume " + name_; }
  absl::StatusOr<BlockResult> run(const Row&, double seconds) override {
    log_ += " run " + name_;
    seconds_ = seconds;
    if (!run_status_.ok()) return run_status_;
    const double us = medians_us_.front();
    medians_us_.pop_front();
    return BlockResult{.calls = 1, .seconds = us, .median_us = us, .bytes = 1, .usage = {}};
  }

  const std::string name_;
  const bool spins_;
  std::deque<double> medians_us_;
  std::string& log_;
  double seconds_ = 0;
  absl::Status start_status_, run_status_;
};

class BestOfTest : public testing::Test {
 protected:
  BestOf make(std::deque<double> still_us, std::deque<double> spinning_us) {
    auto still = std::make_unique<Variant>("still", false, std::move(still_us), log_);
    auto spinning = std::make_unique<Variant>("spinning", true, std::move(spinning_us), log_);
    still_ = still.get();
    spinning_ = spinning.get();
    std::vector<std::unique_ptr<Group>> variants;
    variants.push_back(std::move(still));
    variants.push_back(std::move(spinning));
    return BestOf("both", std::move(variants));
  }

  std::string log_;
  Variant* still_ = nullptr;
  Variant* spinning_ = nullptr;
};

TEST_F(BestOfTest, TheMedianSoFarDecidesAndNotOneLuckyBlock) {
  BestOf both = make({10, 10, 3, 10}, {8, 8, 8, 8});
  std::vector<double> medians;
  for (int i = 0; i < 4; ++i) medians.push_back(both.run(kCall, 1)->median_us);
  EXPECT_THAT(medians, testing::ElementsAre(8, 8, 8, 8));
}

TEST_F(BestOfTest, EachRowHasItsOwnBestAndARateIsBetterWhenHigher) {
  BestOf both = make({2, 9}, {4, 5});
  EXPECT_EQ(both.run(kTensor, 1)->median_us, 2);
  EXPECT_EQ(both.run(kCall, 1)->median_us, 5);
  EXPECT_EQ(both.name(), "both");
}

TEST_F(BestOfTest, TheBlocksTimeIsShared) {
  BestOf both = make({1}, {1});
  ASSERT_TRUE(both.run(kCall, 0.3).ok());
  EXPECT_DOUBLE_EQ(still_->seconds_, 0.15);
  EXPECT_DOUBLE_EQ(spinning_->seconds_, 0.15);
}

TEST_F(BestOfTest, AVariantThatSpinsRunsOnlyInItsOwnPart) {
  BestOf both = make({1, 1}, {1});
  ASSERT_TRUE(both.start().ok());
  ASSERT_TRUE(both.run(kCall, 1).ok());
  EXPECT_EQ(log_,
            " start still start spinning pause spinning"
            " run still resume spinning run spinning pause spinning");
  log_.clear();
  both.pause();
  both.resume();
  EXPECT_EQ(log_, " pause still pause spinning resume still");
  log_.clear();
  ASSERT_TRUE(both.run(kAfterIdle, 1).ok());
  EXPECT_EQ(log_, " run still");
}

TEST_F(BestOfTest, AFailureIsThatOfTheGroupAndARowMayBelongToOneVariant) {
  BestOf both = make({7}, {1});
  spinning_->run_status_ = absl::UnimplementedError("");
  EXPECT_EQ(both.run(kCall, 1)->median_us, 7);
  still_->run_status_ = absl::UnimplementedError("");
  EXPECT_TRUE(absl::IsUnimplemented(both.run(kCall, 1).status()));
  still_->run_status_ = absl::DataLossError("wrong sum");
  EXPECT_EQ(both.run(kCall, 1).status(), absl::DataLossError("wrong sum"));
  spinning_->start_status_ = absl::UnavailableError("no port");
  EXPECT_EQ(both.start(), absl::UnavailableError("spinning: no port"));
}

}  // namespace
}  // namespace weft::bench
