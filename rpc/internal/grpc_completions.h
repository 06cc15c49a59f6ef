// One gRPC completion queue and how it is waited for: asleep, or awake for a moment first where
// messages come quickly (base/spin_policy.h).
//
// Thread safety: serve_one runs on one thread at a time, as ServingThreads has it.
// Lifetime: the queue outlives this object.
#pragma once

#include <grpcpp/grpcpp.h>

#include "weft/base/clock.h"
#include "weft/base/spin_policy.h"

namespace weft::internal {

class GrpcCompletions {
 public:
  GrpcCompletions(grpc::CompletionQueue& queue, Nanoseconds spin) : queue_(queue), spin_(spin) {}

  // Waits for one operation (GrpcOperation) of the queue to end; false once it is shut down and
  // empty.
  bool serve_one();

 private:
  using Status = grpc::CompletionQueue::NextStatus;
  // TIMEOUT: nothing came in time, or another thread needs the processor.
  Status look(TimePoint until, void** tag, bool* ok);

  grpc::CompletionQueue& queue_;
  SpinPolicy spin_;
};

}  // namespace weft::internal
