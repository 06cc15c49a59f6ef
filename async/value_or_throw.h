// Turns a failed StatusOr into the exception of Weft's public functions.
//
// Thread safety: a free function.
#pragma once

#include <utility>

#include "absl/status/statusor.h"
#include "weft/base/rpc_error.h"

namespace weft {

// Returns the value. Throws RpcError if there is none.
template <class T>
T value_or_throw(absl::StatusOr<T> value) {
  if (!value.ok()) throw RpcError(value.status());
  return *std::move(value);
}

}  // namespace weft
