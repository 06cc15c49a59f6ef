// Joins the tensors of many calls into one, and divides a result among them.
//
// A value is joinable if it is made of tensors alone: a tensor, a vector, pair or tuple of joinable
// values, or a struct whose weft_fields are.
//
// Thread safety: free functions.
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

// A tuple of values, or of references to the fields of a struct.
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

// Calls `visit` with each tensor of a joinable value, always in the same order; visit.length, if
// there is one, with the length of each vector before its elements.
template <class T, class Visit>
void visit_each_tensor(T& value, Visit&& visit) {
  Joinable<T>::visit(value, visit);
}

// What must agree among calls that are joined, gathered from one call's tensors.
struct ShapeOfCall {
  BatchJoin join = BatchJoin::kStack;
  std::vector<int64_t> numbers = {};
  int64_t rows = -1;  // under kConcatenate: of every tensor; -1 before the first
  size_t tensors = 0;
  bool requires_grad = false;
  absl::Status status = {};  // InvalidArgument: a tensor that cannot be joined

  void operator()(const at::Tensor& tensor);
  void length(size_t count) { numbers.push_back(static_cast<int64_t>(count)); }
};

// One tensor of all calls, in their order. May share memory with the only one.
at::Tensor join_tensors(std::vector<at::Tensor> tensors, BatchJoin join);

// What share of a result's first dimension each call has.
struct BatchRows {
  BatchJoin join = BatchJoin::kStack;
  std::vector<int64_t> of;  // under kStack all are 1
};
// Internal, naming the batcher, if the result's first dimension is not the calls' together.
absl::StatusOr<std::vector<at::Tensor>> divide_tensor(const at::Tensor& tensor,
                                                      const BatchRows& rows,
                                                      const std::string& batcher);
absl::Status wrong_count(const std::string& batcher, size_t results, size_t calls);

}  // namespace weft::rpc_internal
