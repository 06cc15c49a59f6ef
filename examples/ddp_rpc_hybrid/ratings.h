// Makes ratings of items by users from a known model. So the result of a recommender can be
// compared with what the data holds.
//
// A rating is the sum of four terms: the user's mood, the item's quality, the agreement of their
// tastes (a scalar product of kTastes numbers), and noise. Each pair is rated at most once. Some
// pairs are for training, others for the test.
//
// Thread safety: plain values and functions. Equal seeds give equal ratings in every process.
#pragma once

#include <cstdint>
#include <string>

#include <ATen/core/Tensor.h>

namespace weft::examples {

inline constexpr int64_t kUsers = 300;
inline constexpr int64_t kItems = 200;
inline constexpr int64_t kTastes = 4;
inline constexpr double kNoise = 0.3;  // standard deviation: the lowest error a model can reach

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

// Returns the test error of a prediction without tastes. It predicts the mean of the training set
// plus the mean deviations of the user and of the item. Deviations are drawn towards 0 where there
// are few ratings.
double rmse_of_means(const PlantedRatings& ratings);

// How good a prediction of the test's ratings is.
struct Score {
  double error = 0;  // rmse
  double means = 0;  // rmse_of_means
  // Most of the way from the means to the noise.
  bool has_learned() const { return error < kNoise + (means - kNoise) / 4; }
  std::string text() const;
};
Score score(const at::Tensor& predicted, const PlantedRatings& ratings);

}  // namespace weft::examples
