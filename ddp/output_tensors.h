// Finds the tensors in the result of a model's forward. It looks at tensors, and at containers,
// pairs, tuples, optionals and variants of these. It also looks at structs with this function,
// which argument-dependent lookup must find:
//
//   auto weft_fields(T& value) { return std::tie(value.a, value.b); }
//
// Other types count as holding none.
//
// Thread safety: free functions.
#pragma once

#include <type_traits>

#include <ATen/core/Tensor.h>

#include "weft/base/parts.h"

namespace weft {

// Calls `visit` with each defined tensor of the value, in order.
template <class T, class Visit>
void visit_tensors(T& value, const Visit& visit) {
  if constexpr (std::is_same_v<T, at::Tensor>) {
    if (value.defined()) visit(value);
  } else {
    for_each_part(value, [&](auto& part) { visit_tensors(part, visit); });
  }
}

}  // namespace weft
