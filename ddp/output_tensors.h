// Finds the tensors in the result of a model's forward. It looks at tensors, and at vectors,
// arrays, pairs, tuples, optionals and maps (ordered or not) of these. It also looks at structs
// with this function, which argument-dependent lookup must find:
//
//   auto weft_fields(T& value) { return std::tie(value.a, value.b); }
//
// Other types count as holding none.
//
// Thread safety: free functions.
#pragma once

#include <array>
#include <map>
#include <optional>
#include <tuple>
#include <type_traits>
#include <unordered_map>
#include <utility>
#include <vector>

#include <ATen/core/Tensor.h>

namespace weft {
namespace ddp_internal {

template <class T>
concept HasFields = requires(T& value) {
  weft_fields(value);
};

}  // namespace ddp_internal

template <class Visit>
void visit_tensors(at::Tensor& tensor, const Visit& visit) {
  if (tensor.defined()) visit(tensor);
}
template <class T, class Visit>
void visit_tensors(std::vector<T>& values, const Visit& visit);
template <class T, size_t N, class Visit>
void visit_tensors(std::array<T, N>& values, const Visit& visit);
template <class T, class Visit>
void visit_tensors(std::optional<T>& value, const Visit& visit);
template <class K, class T, class Visit>
void visit_tensors(std::map<K, T>& values, const Visit& visit);
template <class K, class T, class Visit>
void visit_tensors(std::unordered_map<K, T>& values, const Visit& visit);
template <class A, class B, class Visit>
void visit_tensors(std::pair<A, B>& values, const Visit& visit);
template <class... T, class Visit>
void visit_tensors(std::tuple<T...>& values, const Visit& visit);

template <class T, class Visit>
void visit_tensors(T& value, const Visit& visit) {
  if constexpr (ddp_internal::HasFields<T>) {
    std::apply([&](auto&... fields) { (visit_tensors(fields, visit), ...); }, weft_fields(value));
  }
}
template <class T, class Visit>
void visit_tensors(std::vector<T>& values, const Visit& visit) {
  if constexpr (!std::is_same_v<T, bool>) {
    for (T& value : values) visit_tensors(value, visit);
  }
}
template <class T, size_t N, class Visit>
void visit_tensors(std::array<T, N>& values, const Visit& visit) {
  for (T& value : values) visit_tensors(value, visit);
}
template <class T, class Visit>
void visit_tensors(std::optional<T>& value, const Visit& visit) {
  if (value.has_value()) visit_tensors(*value, visit);
}
template <class K, class T, class Visit>
void visit_tensors(std::map<K, T>& values, const Visit& visit) {
  for (auto& [key, value] : values) visit_tensors(value, visit);
}
template <class K, class T, class Visit>
void visit_tensors(std::unordered_map<K, T>& values, const Visit& visit) {
  for (auto& [key, value] : values) visit_tensors(value, visit);
}
template <class A, class B, class Visit>
void visit_tensors(std::pair<A, B>& values, const Visit& visit) {
  visit_tensors(values.first, visit);
  visit_tensors(values.second, visit);
}
template <class... T, class Visit>
void visit_tensors(std::tuple<T...>& values, const Visit& visit) {
  std::apply([&](auto&... each) { (visit_tensors(each, visit), ...); }, values);
}

}  // namespace weft
