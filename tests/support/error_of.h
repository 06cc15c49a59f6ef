// Returns the error that a call failed with, as a status.
//
// Thread safety: a free function.
#pragma once

#include "absl/status/status.h"
#include "weft/base/rpc_error.h"

namespace weft::testing {

// Returns OK if `f` throws no RpcError. Other exceptions pass through.
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
