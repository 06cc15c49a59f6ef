// A stack of its own for the signal handlers of a thread.
//
// A thread that computes needs one. The matrix products of oneDNN, which LibTorch uses for LSTMs,
// keep data below the stack pointer. The kernel protects only 128 bytes there (the red zone of the
// System V ABI for x86-64). So a handler that runs on the thread's own stack overwrites them, and
// the product then writes to wrong addresses. docs/threading.md has the measurement.
//
// Thread safety: the function may be called from any thread.
#pragma once

namespace weft {

// From the first call on this thread on, handlers that are installed with SA_ONSTACK run on a stack
// of their own. If the thread has one already, it keeps it. The stack lives as long as the thread.
// Errors: throws std::bad_alloc.
void use_signal_stack();

}  // namespace weft
