#include "weft/ddp/reducer/bucket_assignment.h"

#include <algorithm>
#include <map>
#include <numeric>
#include <utility>

namespace weft::ddp_internal {

Buckets assign_buckets_in_order(const std::vector<ParameterSize>& parameters,
                                const std::vector<size_t>& order,
                                const std::vector<uint64_t>& limits) {
  struct Open {
    std::vector<size_t> indices;
    uint64_t bytes = 0;
    size_t limit = 0;  // index of the limit for this bucket
  };
  Buckets closed;
  std::map<int64_t, Open> open;
  std::vector<int64_t> kinds;  // in order of appearance
  for (const size_t index : order) {
    const ParameterSize& parameter = parameters[index];
    if (parameter.sparse) {
      closed.push_back({index});
      continue;
    }
    const auto [found, fresh] = open.try_emplace(parameter.kind);
    if (fresh) kinds.push_back(parameter.kind);
    Open& bucket = found->second;
    bucket.indices.push_back(index);
    bucket.bytes += parameter.bytes;
    if (bucket.bytes < limits[bucket.limit]) continue;
    closed.push_back(std::exchange(bucket.indices, {}));
    bucket.bytes = 0;
    bucket.limit = std::min(bucket.limit + 1, limits.size() - 1);
  }
  for (const int64_t kind : kinds) {
    if (!open[kind].indices.empty()) closed.push_back(std::move(open[kind].indices));
  }
  return closed;
}

Buckets assign_buckets(const std::vector<ParameterSize>& parameters,
                       const std::vector<uint64_t>& limits) {
  std::vector<size_t> order(parameters.size());
  std::iota(order.begin(), order.end(), size_t{0});
  Buckets buckets = assign_buckets_in_order(parameters, order, limits);
  // The indices in a bucket ascend, so its first one is the smallest.
  std::sort(buckets.begin(), buckets.end(),
            [](const auto& one, const auto& other) { return one.front() > other.front(); });
  return buckets;
}

}  // namespace weft::ddp_internal
