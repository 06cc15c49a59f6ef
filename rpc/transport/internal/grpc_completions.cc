#include "weft/rpc/transport/internal/grpc_completions.h"

#include "weft/async/serving_threads.h"
#include "weft/rpc/transport/internal/grpc_stream.h"

namespace weft::rpc_internal {

bool GrpcCompletions::serve_one() {
  void* tag = nullptr;
  bool ok = false;
  using Status = grpc::CompletionQueue::NextStatus;
  Status status = Status::TIMEOUT;
  spinner_.wait(
      [&] {
        status = queue_.AsyncNext(&tag, &ok, gpr_time_0(GPR_CLOCK_MONOTONIC));
        return status != Status::TIMEOUT;
      },
      [&] { status = queue_.AsyncNext(&tag, &ok, gpr_inf_future(GPR_CLOCK_MONOTONIC)); });
  if (status != Status::GOT_EVENT) return false;
  const ServingThreads::Work work;
  static_cast<GrpcOperation*>(tag)->ended(ok);
  return true;
}

}  // namespace weft::rpc_internal
