// Estimates the memory of a value beyond sizeof: its tensors, strings and numbers. For limits.
//
// Memory that several values share counts for each of them. Containers, structs with weft_fields,
// variants, optionals, pointers and protobuf messages count; other types count 0.
//
// Thread safety: free functions without state.
#pragma once

#include <cstddef>
#include <tuple>
#include <type_traits>
#include <utility>
#include <variant>

#include <ATen/core/Tensor.h>

#include "weft/rpc/codec/codec.h"

namespace weft::rpc_internal {

// For dense tensors and sparse COO tensors; 0 for others.
size_t tensor_bytes(const at::Tensor& tensor);

template <class T>
size_t value_bytes(const T& value);

template <class Tuple>
size_t bytes_of_fields(const Tuple& fields) {
  return std::apply([](const auto&... field) { return (size_t{0} + ... + value_bytes(field)); },
                    fields);
}

template <class T>
inline constexpr bool kIsVariant = false;
template <class... T>
inline constexpr bool kIsVariant<std::variant<T...>> = true;

template <class T>
size_t value_bytes(const T& value) {
  if constexpr (std::is_same_v<T, at::Tensor>) {
    return tensor_bytes(value);
  } else if constexpr (std::is_scalar_v<T>) {
    return 0;
  } else if constexpr (HasFields<T>) {
    return bytes_of_fields(weft_fields(const_cast<T&>(value)));  // weft_fields has no const form
  } else if constexpr (requires { value.begin(), value.end(), value.size(); }) {
    using Element = std::remove_cvref_t<decltype(*value.begin())>;
    size_t bytes = value.size() * sizeof(Element);
    if constexpr (!std::is_scalar_v<Element>) {
      for (const auto& element : value) bytes += value_bytes(element);
    }
    return bytes;
  } else if constexpr (requires { std::tuple_size<T>::value; }) {
    return bytes_of_fields(value);
  } else if constexpr (kIsVariant<T>) {
    return std::visit([](const auto& held) { return value_bytes(held); }, value);
  } else if constexpr (requires { static_cast<bool>(value), value_bytes(*value); }) {
    return static_cast<bool>(value) ? value_bytes(*value) : 0;
  } else if constexpr (requires { value.SpaceUsedLong(); }) {
    return value.SpaceUsedLong();
  } else {
    return 0;
  }
}

}  // namespace weft::rpc_internal
