// Lets a program end in order when it is asked to. SIGTERM asks: weft_launch, SLURM and Kubernetes
// send it some seconds before they kill (weft_launch --grace, srun --signal, the grace period of a
// pod).
//
//   weft::Worker worker = weft::Worker::join(...);
//   weft::expect_stop_requests();  // until then SIGTERM ends the process
//   while (step < steps && !weft::stop_requested()) train(step++);
//   save();
//   worker.shutdown();
//   return step < steps ? weft::kStoppedExitCode : 0;
//
// The ranks of a data-parallel program must stop after the same step. They agree on it with an
// all_reduce of the flag, as examples/ddp_mnist does. A process that waits for the others to join
// cannot stop in order, so expect_stop_requests() comes after that.
//
// Thread safety: all functions may be called from any thread.
#pragma once

#include "weft/async/future.h"

namespace weft {

// The exit code of a program that stopped because it was asked to: 128 + SIGTERM, as in a shell. It
// tells the stop from a success. Whether the job starts again is up to the scheduler (deploy/).
inline constexpr int kStoppedExitCode = 143;

// From the first call of this function on, SIGTERM no longer ends the process, and only makes
// stop_requested() true. A second SIGTERM changes nothing, because schedulers send it to all
// processes of a task, and the launcher among them passes it on. Ctrl-C and SIGKILL still end the
// process. A process that only serves calls this function before it waits in Worker::shutdown, and
// so it serves on while the others save and leave.
//
// The handler must not run on the stack of a thread that computes (worker/signal_stack.h). It
// normally runs on the main thread, so call this function there: it gives its thread a stack for
// handlers. docs/threading.md has the exceptions.
// Errors: throws std::bad_alloc.
void expect_stop_requests();

// Whether SIGTERM has come. Calls expect_stop_requests() too.
bool stop_requested();

// Is complete once SIGTERM has come. Calls expect_stop_requests() too.
// Errors: throws RpcError (ResourceExhausted) if the system gives no thread or no descriptor.
Future<void> stop_request();

}  // namespace weft
