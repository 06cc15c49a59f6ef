#include "weft/bench/report/statistics.h"

#include <algorithm>
#include <cmath>
#include <cstdlib>
#include <random>

namespace weft::bench {
namespace {

double quantile_of_sorted(std::span<const double> sorted, double q) {
  if (sorted.empty()) std::abort();
  const double position = q * static_cast<double>(sorted.size() - 1);
  const size_t below = static_cast<size_t>(std::floor(position));
  const size_t above = std::min(below + 1, sorted.size() - 1);
  const double weight = position - static_cast<double>(below);
  return sorted[below] * (1 - weight) + sorted[above] * weight;
}

}  // namespace

double quantile(std::span<const double> sample, double q) {
  std::vector<double> sorted(sample.begin(), sample.end());
  std::sort(sorted.begin(), sorted.end());
  return quantile_of_sorted(sorted, q);
}

double median(std::span<const double> sample) { return quantile(sample, 0.5); }

Interval bootstrap_median(std::span<const double> sample, uint64_t seed, int resamples) {
  if (sample.empty()) std::abort();
  std::mt19937_64 random(seed);
  std::uniform_int_distribution<size_t> pick(0, sample.size() - 1);
  std::vector<double> draw(sample.size());
  std::vector<double> medians;
  medians.reserve(resamples);
  for (int i = 0; i < resamples; ++i) {
    for (double& value : draw) value = sample[pick(random)];
    medians.push_back(median(draw));
  }
  std::sort(medians.begin(), medians.end());
  return {quantile_of_sorted(medians, 0.025), quantile_of_sorted(medians, 0.975)};
}

}  // namespace weft::bench
