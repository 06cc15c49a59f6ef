#include "weft/bench/report/series.h"

namespace weft::bench {

std::vector<double> values_of(const Row& row, const Series& series) {
  std::vector<double> values;
  for (const BlockResult& block : series.blocks) values.push_back(value_of(row, block));
  return values;
}

double cpu_us_per_call(const Series& series) {
  return median_of(series, [](const BlockResult& block) {
    return block.usage.cpu_seconds * 1e6 / static_cast<double>(block.all_calls);
  });
}

double cpu_seconds_per_gb(const Series& series) {
  return median_of(series, [](const BlockResult& block) {
    if (block.bytes == 0) return 0.0;
    const double gb_per_call = block.bytes * 1e-9 / static_cast<double>(block.calls);
    return block.usage.cpu_seconds / static_cast<double>(block.all_calls) / gb_per_call;
  });
}

double faults_per_call(const Series& series) {
  return median_of(series, [](const BlockResult& block) {
    return block.usage.page_faults / static_cast<double>(block.all_calls);
  });
}

double switches_per_call(const Series& series) {
  return median_of(series, [](const BlockResult& block) {
    return block.usage.switches / static_cast<double>(block.all_calls);
  });
}

double stream_share(const Series& series) {
  return median_of(series, [](const BlockResult& block) {
    return block.stream_gb_per_s / block.stream_alone_gb_per_s;
  });
}

}  // namespace weft::bench
