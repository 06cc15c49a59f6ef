#include "weft/examples/pipeline_resnet50/partition.h"

#include <algorithm>
#include <limits>
#include <stdexcept>

#include "absl/strings/str_cat.h"

namespace weft::examples {

std::vector<size_t> cut_by_cost(const std::vector<double>& costs, size_t parts) {
  const size_t layers = costs.size();
  if (parts == 0 || parts > layers) {
    throw std::invalid_argument(
        absl::StrCat(layers, " layers cannot be cut into ", parts, " shards"));
  }
  std::vector<double> sums(layers + 1, 0.0);
  for (size_t i = 0; i < layers; ++i) sums[i + 1] = sums[i] + costs[i];
  // slowest[p][n]: the cost of the slowest of the first p parts when they cover the first n layers.
  // begin[p][n]: the first layer of the last one of these parts.
  const double none = std::numeric_limits<double>::infinity();
  std::vector<std::vector<double>> slowest(parts + 1, std::vector<double>(layers + 1, none));
  std::vector<std::vector<size_t>> begin(parts + 1, std::vector<size_t>(layers + 1, 0));
  slowest[0][0] = 0;
  for (size_t p = 1; p <= parts; ++p) {
    for (size_t n = p; n <= layers; ++n) {
      for (size_t from = p - 1; from < n; ++from) {
        const double here = std::max(slowest[p - 1][from], sums[n] - sums[from]);
        if (here < slowest[p][n]) {
          slowest[p][n] = here;
          begin[p][n] = from;
        }
      }
    }
  }
  std::vector<size_t> cuts{layers};
  for (size_t p = parts; p > 0; --p) cuts.push_back(begin[p][cuts.back()]);
  std::reverse(cuts.begin(), cuts.end());
  return cuts;
}

}  // namespace weft::examples
