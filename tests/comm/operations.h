// Makes operations of a CollectiveGroup on doubles, and computes what their results must be.
//
// Thread safety: free functions.
// Lifetime: an operation refers to the vectors that it was made from.
#pragma once

#include <cstddef>
#include <cstdint>
#include <cstring>
#include <random>
#include <span>
#include <vector>

#include "weft/comm/same_host/collective_group.h"
#include "weft/tests/comm/ranks.h"

namespace weft::testing {

// Sums doubles. This is not associative, so a wrong order of the sum changes the result.
inline void add_doubles(std::span<const std::byte* const> sources,
                        std::span<std::byte* const> targets, size_t count) {
  for (size_t i = 0; i < count; ++i) {
    double sum = 0;
    for (const std::byte* source : sources) {
      double value;
      std::memcpy(&value, source + i * sizeof(double), sizeof(double));
      sum = source == sources.front() ? value : sum + value;
    }
    for (std::byte* target : targets)
      std::memcpy(target + i * sizeof(double), &sum, sizeof(double));
  }
}

inline std::vector<double> numbers(uint64_t seed, size_t count) {
  std::mt19937_64 random(seed);
  std::uniform_real_distribution<double> draw(-1e6, 1e6);
  std::vector<double> all(count);
  for (double& one : all) one = draw(random);
  return all;
}

inline comm_internal::Operation::Part part_of(std::vector<double>& data) {
  return {reinterpret_cast<std::byte*>(data.data()), data.size() * sizeof(double)};
}

inline comm_internal::Operation all_reduce(std::vector<double>& data) {
  comm_internal::Operation operation;
  operation.label = "all_reduce(sum, float64)";
  operation.shape = {static_cast<int64_t>(data.size())};
  operation.parts = {part_of(data)};
  operation.sum = comm_internal::Operation::Sum::kEverywhere;
  operation.kernel = add_doubles;
  operation.element_bytes = sizeof(double);
  return operation;
}

inline comm_internal::Operation barrier() {
  comm_internal::Operation operation;
  operation.label = "barrier";
  return operation;
}

inline comm_internal::Channels::Message message(int peer, int tag, std::vector<double>& data) {
  comm_internal::Channels::Message one;
  one.peer = peer;
  one.tag = tag;
  one.data = part_of(data).data;
  one.size = part_of(data).size;
  return one;
}

inline absl::Status run(comm_internal::CollectiveGroup& group, comm_internal::Operation operation) {
  return group.wait(group.start(std::move(operation), in_time()), in_time());
}

inline std::vector<double> sum_in_order(const std::vector<std::vector<double>>& all) {
  std::vector<double> sum = all[0];
  for (size_t rank = 1; rank < all.size(); ++rank) {
    for (size_t i = 0; i < sum.size(); ++i) sum[i] += all[rank][i];
  }
  return sum;
}

}  // namespace weft::testing
