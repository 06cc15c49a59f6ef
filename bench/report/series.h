// Figures of one contestant in one row: medians over its blocks.
//
// Thread safety: pure functions.
// Errors: a series without blocks is a programming error (see has_blocks).
#pragma once

#include <functional>
#include <vector>

#include "weft/bench/harness.h"
#include "weft/bench/report/statistics.h"

namespace weft::bench {

// Whether the contestant has this row and did not fail in it.
inline bool has_blocks(const Series& series) {
  return series.status.ok() && !series.blocks.empty();
}

std::vector<double> values_of(const Row& row, const Series& series);  // one per block

// `figure` is a function of a block, or one of its members.
template <class Figure>
double median_of(const Series& series, Figure figure) {
  std::vector<double> values;
  for (const BlockResult& block : series.blocks) values.push_back(std::invoke(figure, block));
  return median(values);
}

// The costs of all processes of the contestant, warm-up included.
double cpu_us_per_call(const Series& series);
double cpu_seconds_per_gb(const Series& series);  // of tensors; 0 in rows without any
double faults_per_call(const Series& series);
double switches_per_call(const Series& series);

// kMixed: the rate of the stream beside small calls, as a share of its rate alone.
double stream_share(const Series& series);

}  // namespace weft::bench
