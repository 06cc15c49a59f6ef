// Ratings of items by users, made from a model that is known, so that what a recommender learns can
// be told from what there is to learn.
//
// A rating is the sum of the user's mood, the item's quality, how well their tastes agree (a scalar
// product of kTastes numbers), and noise. Each pair is rated at most once; some pairs are for
// training, others for the test.
//
// Thread safety: plain values and functions. Equal seeds give equal ratings in every process.
#pragma once

#include <cstdint>

#include <ATen/core/Tensor.h>

namespace weft::examples {

inline constexpr int64_t kUsers = 300;
inline constexpr int64_t kItems = 200;
inline constexpr int64_t kTastes = 4;
inline constexpr double kNoise = 0.3;  // standard deviation: no model comes below it

struct Ratings {
  at::Tensor users;  // int64, [ratings]
  at::Tensor items;  // int64, [ratings]
  at::Tensor stars;  // float, [ratings]

  int64_t size() const { return users.size(0); }
  Ratings pick(const at::Tensor& indices) const;
};

struct PlantedRatings {
  Ratings train;
  Ratings test;
};

PlantedRatings plant_ratings(uint64_t seed, int64_t train = 24000, int64_t test = 6000);

double rmse(const at::Tensor& predicted, const at::Tensor& stars);

// What the test's error is without any taste: every rating is the mean of the training set, plus
// what the user and the item are above it in the mean, which is drawn towards 0 where they have few
// ratings.
double rmse_of_means(const PlantedRatings& ratings);

}  // namespace weft::examples
