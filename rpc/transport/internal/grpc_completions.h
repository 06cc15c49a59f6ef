// Waits for the operations of one gRPC completion queue and runs their code. If messages come
// quickly, it spins for a moment before it sleeps (async/spin_policy.h).
//
// Thread safety: serve_one runs on one thread at a time; ServingThreads ensures it. `looks` may be
// called from any thread.
// Lifetime: the queue must outlive this object.
#pragma once

#include <atomic>
#include <cstdint>

#include <grpcpp/grpcpp.h>

#include "weft/async/spin_policy.h"
#include "weft/base/clock.h"

namespace weft::rpc_internal {

class GrpcCompletions {
 public:
  GrpcCompletions(grpc::CompletionQueue& queue, Nanoseconds spin) : queue_(queue), spin_(spin) {}

  // Waits until one operation (GrpcOperation) of the queue is complete, and handles it. Returns
  // false once the queue is shut down and empty.
  bool serve_one();
  // How many waits began with spinning.
  uint64_t looks() const { return looks_.load(std::memory_order_relaxed); }

 private:
  using Status = grpc::CompletionQueue::NextStatus;
  // Spins, and yields between two looks at the queue. TIMEOUT: nothing came within the limit, also
  // if other threads had the processor meanwhile.
  Status look(void** tag, bool* ok);

  grpc::CompletionQueue& queue_;
  SpinPolicy spin_;
  std::atomic<uint64_t> looks_{0};
};

}  // namespace weft::rpc_internal
