// Makes buckets of gradients by hand, as a reducer hands them to a communication hook.
//
// Thread safety: free functions.
// Lifetime: the shapes outlive the bucket.
#pragma once

#include <cstdint>
#include <vector>

#include <ATen/ATen.h>
#include <torch/csrc/distributed/c10d/comm.hpp>

namespace weft::testing {

using Shapes = std::vector<std::vector<int64_t>>;

inline int64_t numel_of(const Shapes& shapes) {
  int64_t result = 0;
  for (const auto& shape : shapes) result += c10::multiply_integers(shape);
  return result;
}

inline c10d::GradBucket make_bucket(at::Tensor buffer, const Shapes& shapes, size_t index = 0,
                                    size_t count = 1) {
  std::vector<size_t> offsets;
  std::vector<size_t> lengths;
  std::vector<c10::IntArrayRef> sizes;
  size_t end = 0;
  for (const auto& shape : shapes) {
    offsets.push_back(end);
    lengths.push_back(c10::multiply_integers(shape));
    sizes.emplace_back(shape);
    end += lengths.back();
  }
  return c10d::GradBucket(index, count, std::move(buffer), std::move(offsets), std::move(lengths),
                          std::move(sizes), std::vector<at::Tensor>(shapes.size()), std::nullopt);
}

// Waits for the hook's result, and throws its error.
inline at::Tensor result_of(c10d::CommHookInterface& hook, c10d::GradBucket& bucket) {
  const auto future = hook.runHook(bucket);
  future->waitAndThrow();
  return hook.parseHookResult(future->value());
}

// The same numbers on every thread; they differ for each `rank` and `number`.
inline at::Tensor gradients(int rank, int64_t numel, int number = 0,
                            at::ScalarType type = at::kFloat) {
  const at::Generator generator = at::detail::createCPUGenerator(1 + rank + 1000 * number);
  return at::randn({numel}, generator, at::TensorOptions(at::kDouble)).to(type);
}

inline at::Tensor mean_gradients(int size, int64_t numel, int number = 0,
                                 at::ScalarType type = at::kFloat) {
  at::Tensor sum = at::zeros({numel}, at::kDouble);
  for (int rank = 0; rank < size; ++rank) sum += gradients(rank, numel, number, at::kDouble);
  return sum.div_(size).to(type);
}

inline double relative_error(const at::Tensor& a, const at::Tensor& b) {
  return ((a - b).norm() / b.norm()).item<double>();
}

}  // namespace weft::testing
