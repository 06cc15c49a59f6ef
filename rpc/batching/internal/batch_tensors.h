// Joins the tensors of many calls into one tensor, and divides a result among the calls.
//
// A value is joinable if it consists only of tensors: a tensor, a vector, pair or tuple of joinable
// values, or a struct whose weft_fields are joinable.
//
// Thread safety: free functions without state.
#pragma once

#include <cstdint>
#include <string>
#include <tuple>
#include <type_traits>
#include <utility>
#include <vector>

#include <ATen/core/Tensor.h>

#include "absl/status/statusor.h"
#include "weft/base/parts.h"
#include "weft/rpc/batching/batch_options.h"

namespace weft::rpc_internal {

template <class T>
inline constexpr bool kJoinable = false;
template <>
inline constexpr bool kJoinable<at::Tensor> = true;
template <class T>
inline constexpr bool kJoinable<std::vector<T>> = kJoinable<T>;
template <class... T>
inline constexpr bool kAllJoinable = (kJoinable<std::remove_cvref_t<T>> && ...);
template <class... T>
inline constexpr bool kJoinable<std::tuple<T...>> = kAllJoinable<T...>;
template <class A, class B>
inline constexpr bool kJoinable<std::pair<A, B>> = kAllJoinable<A, B>;
template <HasFields T>
inline constexpr bool kJoinable<T> = kJoinable<FieldsOf<T>>;

// Calls `visit` with each tensor of a joinable value, always in the same order. If visit.length
// exists, calls it with the length of each vector before the elements.
template <class T, class Visit>
void visit_each_tensor(T& value, Visit&& visit) {
  if constexpr (std::is_same_v<T, at::Tensor>) {
    visit(value);
  } else {
    if constexpr (HasElements<T> && requires { visit.length(size_t{0}); }) {
      visit.length(value.size());
    }
    for_each_part(value, [&](auto& part) { visit_each_tensor(part, visit); });
  }
}

// Gathers from the tensors of one call the numbers that must be equal for all calls of a batch.
struct ShapeOfCall {
  BatchJoin join = BatchJoin::kStack;
  std::vector<int64_t> numbers = {};
  int64_t rows = -1;  // under kConcatenate: first dimension of each tensor; -1 before the first
  size_t tensors = 0;
  bool requires_grad = false;
  absl::Status status = {};  // InvalidArgument: a tensor cannot be joined

  void operator()(const at::Tensor& tensor);
  void length(size_t count) { numbers.push_back(static_cast<int64_t>(count)); }
};

// Joins one tensor of each call, in the order of the calls. The tensor of a single call is not
// copied: the result shares its memory.
at::Tensor join_tensors(std::vector<at::Tensor> tensors, BatchJoin join);

// How many rows of a result's first dimension belong to each call.
struct BatchRows {
  BatchJoin join = BatchJoin::kStack;
  std::vector<int64_t> of;  // under kStack all are 1
};
// Internal, which names the batcher: the first dimension of the result is not the sum of all rows.
absl::StatusOr<std::vector<at::Tensor>> divide_tensor(const at::Tensor& tensor,
                                                      const BatchRows& rows,
                                                      const std::string& batcher);
absl::Status wrong_count(const std::string& batcher, size_t results, size_t calls);

}  // namespace weft::rpc_internal
