// The ratings that ddp_rpc_hybrid learns from.
#include <ATen/TensorOperators.h>
#include <ATen/ops/_unique.h>
#include <ATen/ops/cat.h>
#include <ATen/ops/full_like.h>
#include <ATen/ops/tensor.h>
#include <gtest/gtest.h>

#include "weft/examples/ddp_rpc_hybrid/ratings.h"

namespace weft::examples {
namespace {

TEST(PlantedRatings, AreTheSameForTheSameSeedAlone) {
  const PlantedRatings one = plant_ratings(7);
  const PlantedRatings again = plant_ratings(7);
  const PlantedRatings other = plant_ratings(8);
  EXPECT_TRUE(one.train.stars.equal(again.train.stars));
  EXPECT_TRUE(one.test.users.equal(again.test.users));
  EXPECT_TRUE(one.test.items.equal(again.test.items));
  EXPECT_FALSE(one.train.stars.equal(other.train.stars));
}

TEST(PlantedRatings, RateNoPairTwice) {
  const PlantedRatings ratings = plant_ratings(0, 1000, 500);
  EXPECT_EQ(ratings.train.size(), 1000);
  EXPECT_EQ(ratings.test.size(), 500);
  const at::Tensor pairs = at::cat({ratings.train.users * kItems + ratings.train.items,
                                    ratings.test.users * kItems + ratings.test.items});
  EXPECT_EQ(std::get<0>(at::_unique(pairs)).size(0), 1500);
  EXPECT_LT(pairs.max().item<int64_t>(), kUsers * kItems);
  EXPECT_GE(pairs.min().item<int64_t>(), 0);
}

TEST(PlantedRatings, OfEveryPairAreAllThereAre) {
  EXPECT_EQ(plant_ratings(0, kUsers * kItems - 1, 1).train.size(), kUsers * kItems - 1);
  EXPECT_THROW(plant_ratings(0, kUsers * kItems, 1), c10::ValueError);
}

TEST(PlantedRatings, MeansAreBetterThanOneMeanAndFarFromTheNoise) {
  const PlantedRatings ratings = plant_ratings(0);
  const double one_mean = rmse(at::full_like(ratings.test.stars, ratings.train.stars.mean().item()),
                               ratings.test.stars);
  const double means = rmse_of_means(ratings);
  EXPECT_GT(one_mean, means * 1.05);
  EXPECT_GT(means, 3 * kNoise);
}

TEST(Rmse, IsTheRootOfTheMeanOfTheSquares) {
  EXPECT_DOUBLE_EQ(rmse(at::tensor({1.0, 2.0, 3.0, 4.0}), at::tensor({2.0, 1.0, 2.0, 5.0})), 1.0);
  EXPECT_DOUBLE_EQ(rmse(at::tensor({3.0, 0.0}), at::tensor({0.0, 4.0})), std::sqrt(12.5));
}

}  // namespace
}  // namespace weft::examples
