// Runs code inside a pass of LibTorch's autograd engine and turns its exceptions into a Status.
//
// Thread safety: all functions may be called from any thread.
#pragma once

#include <string>

#include "absl/functional/function_ref.h"
#include "absl/status/status.h"

namespace weft::dist_autograd_internal {

// Returns the text of the exception, without LibTorch's C++ backtrace. Call it in a catch block.
std::string text_of_current_exception();

// Runs `body` on this thread, inside a pass of the engine, so that hooks may call
// Engine::queue_callback. If `body` succeeds, the engine then runs these callbacks. Returns the
// status of `body`, or Unknown if a callback throws. `body` must not throw.
absl::Status run_in_engine(absl::FunctionRef<absl::Status()> body);

}  // namespace weft::dist_autograd_internal
