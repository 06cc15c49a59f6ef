// Turns the exceptions of user code and of torch calls into a status. All such code that runs for a
// peer goes through here.
//
// Thread safety: the functions may be called from any thread.
#pragma once

#include "absl/functional/function_ref.h"
#include "absl/status/status.h"
#include "weft/rpc/runtime.h"

namespace weft::rpc_internal {

// Runs `code` and returns its exception as a status with ran = yes. An RpcError keeps its status. A
// c10::Error becomes Unknown with its text, without the backtrace. Each other exception becomes
// Unknown with its type's name and its text.
absl::Status run_user_code(absl::FunctionRef<void()> code);

// The status of the exception that is being handled. Call it inside a catch block.
absl::Status status_of_user_exception();

}  // namespace weft::rpc_internal
