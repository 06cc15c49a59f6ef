// Decides which parameters share a bucket, from their sizes. Pure.
//
// The rule is that of torch 2.11's DistributedDataParallel (reducer.cpp,
// compute_bucket_assignment_by_size). Parameters of one kind (data type and device) fill a bucket,
// in the given order. The bucket closes once its size reaches the limit, so it may exceed the limit
// by one parameter. Each kind goes through the list of limits, whose last one repeats. A parameter
// with sparse gradients has a bucket of its own.
//
// Thread safety: free functions.
#pragma once

#include <cstddef>
#include <cstdint>
#include <vector>

namespace weft::ddp_internal {

using Buckets = std::vector<std::vector<size_t>>;  // indices of parameters

struct ParameterSize {
  uint64_t bytes = 0;
  int64_t kind = 0;  // equal for parameters that may share a bucket
  bool sparse = false;
};

inline constexpr uint64_t kNoLimit = UINT64_MAX;

// Assigns all parameters, in their order. The buckets are sorted by their smallest index, from the
// highest to the lowest, because gradients arrive roughly in that order. `limits` are in bytes, at
// least one.
Buckets assign_buckets(const std::vector<ParameterSize>& parameters,
                       const std::vector<uint64_t>& limits);

// Assigns the parameters in `order`, which names each once. The buckets are in the order in which
// they close.
Buckets assign_buckets_in_order(const std::vector<ParameterSize>& parameters,
                                const std::vector<size_t>& order,
                                const std::vector<uint64_t>& limits);

}  // namespace weft::ddp_internal
