// What a call failed with.
#pragma once

#include "absl/status/status.h"
#include "weft/base/rpc_error.h"

namespace weft::testing {

// OK if `f` throws no RpcError.
template <class F>
absl::Status error_of(F f) {
  try {
    (void)f();
  } catch (const RpcError& error) {
    return error.status();
  }
  return absl::OkStatus();
}

}  // namespace weft::testing
