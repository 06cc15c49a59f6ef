// Runs code inside a pass of LibTorch's engine and turns what it throws into a Status.
//
// Thread safety: any thread.
#pragma once

#include <string>

#include "absl/functional/function_ref.h"
#include "absl/status/status.h"

namespace weft::dist_autograd_internal {

// Inside a catch block: the exception's text, without LibTorch's C++ backtrace.
std::string text_of_current_exception();

// Runs `body` on this thread where hooks may call Engine::queue_callback, and those callbacks after
// it if it succeeds. Returns its status, or Unknown if a callback throws. `body` must not throw.
absl::Status run_in_engine(absl::FunctionRef<absl::Status()> body);

}  // namespace weft::dist_autograd_internal
