#include "weft/bench/report/statistics.h"

#include <random>

#include <gtest/gtest.h>

namespace weft::bench {
namespace {

TEST(Statistics, MedianIsTheMiddleWhateverTheOrder) {
  EXPECT_DOUBLE_EQ(median(std::vector<double>{9, 1, 5}), 5);
  EXPECT_DOUBLE_EQ(median(std::vector<double>{4, 1, 3, 2}), 2.5);
  EXPECT_DOUBLE_EQ(median(std::vector<double>{7}), 7);
}

TEST(Statistics, OneWildRoundDoesNotMoveTheMedian) {
  EXPECT_DOUBLE_EQ(median(std::vector<double>{1, 1, 1, 1, 1000}), 1);
}

TEST(Statistics, QuantileIsLinearBetweenOrderStatistics) {
  const std::vector<double> sample{40, 10, 20, 30};
  EXPECT_DOUBLE_EQ(quantile(sample, 0), 10);
  EXPECT_DOUBLE_EQ(quantile(sample, 1), 40);
  EXPECT_DOUBLE_EQ(quantile(sample, 0.25), 17.5);
}

TEST(Statistics, IntervalOfAConstantSampleIsThatConstant) {
  const Interval interval = bootstrap_median(std::vector<double>(15, 3.0), 1);
  EXPECT_DOUBLE_EQ(interval.low, 3);
  EXPECT_DOUBLE_EQ(interval.high, 3);
}

TEST(Statistics, SameSeedSameInterval) {
  const std::vector<double> sample{1, 2, 4, 8, 16, 32, 64};
  const Interval first = bootstrap_median(sample, 11);
  const Interval second = bootstrap_median(sample, 11);
  EXPECT_EQ(first.low, second.low);
  EXPECT_EQ(first.high, second.high);
}

TEST(Statistics, IntervalHoldsTheMedianAndStaysInsideTheSample) {
  const std::vector<double> sample{5, 1, 4, 2, 3, 9, 7};
  const Interval interval = bootstrap_median(sample, 3);
  EXPECT_LE(interval.low, median(sample));
  EXPECT_GE(interval.high, median(sample));
  EXPECT_GE(interval.low, 1);
  EXPECT_LE(interval.high, 9);
  EXPECT_LT(interval.low, interval.high);
}

TEST(Statistics, IntervalCoversTheTruthAboutAsOftenAsItSays) {
  constexpr uint64_t kSeed = 20261121;
  SCOPED_TRACE(kSeed);
  std::mt19937_64 random(kSeed);
  std::normal_distribution<double> noise(100, 10);
  int covered = 0;
  constexpr int kTrials = 300;
  for (int trial = 0; trial < kTrials; ++trial) {
    std::vector<double> sample(15);
    for (double& value : sample) value = noise(random);
    const Interval interval = bootstrap_median(sample, trial, 400);
    covered += interval.low <= 100 && 100 <= interval.high;
  }
  // 95 % in the limit; the percentile bootstrap of a median of 15 falls a little short or over.
  EXPECT_GE(covered, kTrials * 0.88);
  EXPECT_LE(covered, kTrials * 0.99);
}

}  // namespace
}  // namespace weft::bench
