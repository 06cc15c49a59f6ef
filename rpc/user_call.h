// The one place where code that the user wrote runs for a peer, and where what it throws becomes a
// status.
#pragma once

#include "absl/functional/function_ref.h"
#include "absl/status/status.h"
#include "weft/rpc/runtime.h"

namespace weft::rpc_internal {

// Runs `code`. An RpcError keeps its status, c10::Error loses its backtrace, everything else is
// Unknown with the type's name and the text. Errors carry ran = yes.
absl::Status run_user_code(absl::FunctionRef<void()> code);

// The status of the exception in flight; to be called inside a catch block.
absl::Status status_of_user_exception();

}  // namespace weft::rpc_internal
