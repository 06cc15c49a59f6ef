#include "weft/examples/ddp_rpc_hybrid/ratings.h"

#include <cmath>

#include <ATen/CPUGeneratorImpl.h>
#include <ATen/TensorOperators.h>
#include <ATen/ops/arange.h>
#include <ATen/ops/bincount.h>
#include <ATen/ops/randn.h>
#include <ATen/ops/randperm.h>
#include <c10/util/Exception.h>

#include "absl/strings/str_format.h"

namespace weft::examples {

Ratings Ratings::pick(const at::Tensor& indices) const {
  return {users.index_select(0, indices), items.index_select(0, indices),
          stars.index_select(0, indices)};
}

PlantedRatings plant_ratings(uint64_t seed, int64_t train, int64_t test) {
  if (train + test > kUsers * kItems) {
    C10_THROW_ERROR(ValueError, "more ratings than pairs of user and item");
  }
  const at::Generator random = at::detail::createCPUGenerator(seed);
  const at::Tensor user_tastes = at::randn({kUsers, kTastes}, random) * 0.7;
  const at::Tensor item_tastes = at::randn({kItems, kTastes}, random) * 0.7;
  const at::Tensor moods = at::randn({kUsers}, random) * 0.4;
  const at::Tensor qualities = at::randn({kItems}, random) * 0.4;

  const at::Tensor pairs =
      at::randperm(kUsers * kItems, random, at::kLong).narrow(0, 0, train + test);
  Ratings all{pairs.div(kItems, "floor"), pairs.remainder(kItems), {}};
  const at::Tensor agreement =
      user_tastes.index_select(0, all.users).mul(item_tastes.index_select(0, all.items)).sum(1);
  all.stars = 3 + moods.index_select(0, all.users) + qualities.index_select(0, all.items) +
              agreement + kNoise * at::randn({train + test}, random);
  return {all.pick(at::arange(train)), all.pick(at::arange(train, train + test))};
}

double rmse(const at::Tensor& predicted, const at::Tensor& stars) {
  return std::sqrt((predicted - stars).to(at::kDouble).pow(2).mean().item<double>());
}

double rmse_of_means(const PlantedRatings& ratings) {
  constexpr double kPull = 5;  // draws means towards 0, as this many ratings of 0 would
  const Ratings& train = ratings.train;
  const auto means = [](const at::Tensor& of, const at::Tensor& values, int64_t count) {
    return at::bincount(of, values, count) / (at::bincount(of, {}, count) + kPull);
  };
  const double mean = train.stars.mean().item<double>();
  const at::Tensor by_item = means(train.items, train.stars - mean, kItems);
  const at::Tensor by_user =
      means(train.users, train.stars - mean - by_item.index_select(0, train.items), kUsers);
  const at::Tensor predicted = mean + by_item.index_select(0, ratings.test.items) +
                               by_user.index_select(0, ratings.test.users);
  return rmse(predicted, ratings.test.stars);
}

std::string Score::text() const {
  return absl::StrFormat("test RMSE %.3f (noise alone %.3f, means of users and items %.3f)", error,
                         kNoise, means);
}

Score score(const at::Tensor& predicted, const PlantedRatings& ratings) {
  return {rmse(predicted, ratings.test.stars), rmse_of_means(ratings)};
}

}  // namespace weft::examples
