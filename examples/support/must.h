// Throws an error status as an RpcError. run_main shows it before the program exits.
//
// Thread safety: plain functions.
#pragma once

#include <utility>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "weft/base/rpc_error.h"

namespace weft::examples {

inline void must(const absl::Status& status) {
  if (!status.ok()) throw RpcError(status);
}

template <class T>
T must(absl::StatusOr<T> result) {
  must(result.status());
  return *std::move(result);
}

}  // namespace weft::examples
