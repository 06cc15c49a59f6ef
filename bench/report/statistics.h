// Statistics of an interleaved comparison: medians, quantiles and bootstrap intervals.
//
// Thread safety: pure functions.
// Errors: an empty sample is a programming error and aborts the program.
#pragma once

#include <cstdint>
#include <span>
#include <vector>

namespace weft::bench {

// The value below which a fraction `q` in [0, 1] of the sample lies, with linear interpolation
// between order statistics.
double quantile(std::span<const double> sample, double q);

// The middle of the sample, or the mean of the middle two if their number is even.
double median(std::span<const double> sample);

struct Interval {
  double low = 0;
  double high = 0;
};

// A 95 % percentile-bootstrap interval of the median, from `resamples` samples drawn with
// replacement. The same seed gives the same interval.
Interval bootstrap_median(std::span<const double> sample, uint64_t seed, int resamples = 2000);

}  // namespace weft::bench
