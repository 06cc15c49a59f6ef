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
#include "weft/rpc/batching/batch_options.h"
#include "weft/rpc/codec/codec.h"

namespace weft::rpc_internal {

template <class T>
struct Joinable : std::false_type {};
template <>
struct Joinable<at::Tensor> : std::true_type {
  template <class Visit>
  static void visit(at::Tensor& tensor, Visit&& visit) {
    visit(tensor);
  }
};
template <class T>
requires(Joinable<T>::value) struct Joinable<std::vector<T>> : std::true_type {
  template <class Visit>
  static void visit(std::vector<T>& values, Visit&& visit) {
    if constexpr (requires { visit.length(values.size()); }) visit.length(values.size());
    for (T& value : values) Joinable<T>::visit(value, visit);
  }
};
template <class... T>
inline constexpr bool kAllJoinable = (Joinable<std::remove_cvref_t<T>>::value && ...);
template <class Tuple>
inline constexpr bool kFieldsJoinable = false;
template <class... T>
inline constexpr bool kFieldsJoinable<std::tuple<T...>> = kAllJoinable<T...>;

// Visits a tuple of values, or of references to the fields of a struct.
template <class Tuple, class Visit>
void visit_fields(Tuple&& fields, Visit& visit) {
  std::apply(
      [&](auto&... field) {
        (Joinable<std::remove_cvref_t<decltype(field)>>::visit(field, visit), ...);
      },
      fields);
}
template <class... T>
requires(kAllJoinable<T...>) struct Joinable<std::tuple<T...>> : std::true_type {
  template <class Visit>
  static void visit(std::tuple<T...>& values, Visit&& visit) {
    visit_fields(values, visit);
  }
};
template <class A, class B>
requires(kAllJoinable<A, B>) struct Joinable<std::pair<A, B>> : std::true_type {
  template <class Visit>
  static void visit(std::pair<A, B>& values, Visit&& visit) {
    visit_fields(std::tie(values.first, values.second), visit);
  }
};
template <HasFields T>
requires(kFieldsJoinable<typename Codec<T>::Fields>) struct Joinable<T> : std::true_type {
  template <class Visit>
  static void visit(T& value, Visit&& visit) {
    visit_fields(weft_fields(value), visit);
  }
};

// Calls `visit` with each tensor of a joinable value, always in the same order. If visit.length
// exists, calls it with the length of each vector before the elements.
template <class T, class Visit>
void visit_each_tensor(T& value, Visit&& visit) {
  Joinable<T>::visit(value, visit);
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
