// Waits for the operations of one gRPC completion queue and runs their code. If messages come
// quickly, it spins for a moment before it sleeps (async/spinner.h).
//
// Thread safety: serve_one runs on one thread at a time; ServingThreads ensures it. `looks` may be
// called from any thread.
// Lifetime: the queue must outlive this object.
#pragma once

#include <cstdint>

#include <grpcpp/grpcpp.h>

#include "weft/async/spinner.h"
#include "weft/base/clock.h"

namespace weft::rpc_internal {

class GrpcCompletions {
 public:
  GrpcCompletions(grpc::CompletionQueue& queue, Nanoseconds spin) : queue_(queue), spinner_(spin) {}

  // Waits until one operation (GrpcOperation) of the queue is complete, and handles it. Returns
  // false once the queue is shut down and empty.
  bool serve_one();
  // How many waits began with spinning.
  uint64_t looks() const { return spinner_.spins(); }

 private:
  grpc::CompletionQueue& queue_;
  Spinner spinner_;
};

}  // namespace weft::rpc_internal
