// Estimates the memory of a value beyond sizeof: its tensors, strings and numbers. For limits.
//
// Memory that several values share counts for each of them. Containers, structs with weft_fields,
// variants, optionals, pointers and protobuf messages count; other types count 0.
//
// Thread safety: free functions without state.
#pragma once

#include <cstddef>
#include <type_traits>

#include <ATen/core/Tensor.h>

#include "weft/base/parts.h"

namespace weft::rpc_internal {

// For dense tensors and sparse COO tensors; 0 for others.
size_t tensor_bytes(const at::Tensor& tensor);

template <class T>
size_t value_bytes(const T& value) {
  if constexpr (std::is_same_v<T, at::Tensor>) {
    return tensor_bytes(value);
  } else if constexpr (kHasParts<T>) {
    size_t bytes = 0;
    if constexpr (HasElements<T>) bytes = value.size() * sizeof(ElementOf<T>);
    for_each_part(value, [&](const auto& part) { bytes += value_bytes(part); });
    return bytes;
  } else if constexpr (std::is_scalar_v<T>) {
    return 0;
  } else if constexpr (requires { static_cast<bool>(value), value_bytes(*value); }) {
    return static_cast<bool>(value) ? value_bytes(*value) : 0;
  } else if constexpr (requires { value.SpaceUsedLong(); }) {
    return value.SpaceUsedLong();
  } else {
    return 0;
  }
}

}  // namespace weft::rpc_internal
