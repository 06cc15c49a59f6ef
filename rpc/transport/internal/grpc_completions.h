// One gRPC completion queue and how it is waited for: asleep, or awake for a moment first where
// messages come quickly (base/spin_policy.h).
//
// Thread safety: serve_one runs on one thread at a time, as ServingThreads has it; looks may be
// called from any thread.
// Lifetime: the queue outlives this object.
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

  // Waits for one operation (GrpcOperation) of the queue to end; false once it is shut down and
  // empty.
  bool serve_one();
  // How many waits began awake.
  uint64_t looks() const { return looks_.load(std::memory_order_relaxed); }

 private:
  using Status = grpc::CompletionQueue::NextStatus;
  // Yields in between. TIMEOUT: nothing came in time, or somebody else needs the processor.
  Status look(void** tag, bool* ok);

  grpc::CompletionQueue& queue_;
  SpinPolicy spin_;
  std::atomic<uint64_t> looks_{0};
};

}  // namespace weft::rpc_internal
