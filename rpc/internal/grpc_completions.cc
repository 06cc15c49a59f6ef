#include "weft/rpc/internal/grpc_completions.h"

#include <thread>

#include "weft/base/serving_threads.h"
#include "weft/rpc/internal/grpc_stream.h"

namespace weft::internal {

GrpcCompletions::Status GrpcCompletions::look(TimePoint until, void** tag, bool* ok) {
  while (true) {
    const Status status = queue_.AsyncNext(tag, ok, gpr_time_0(GPR_CLOCK_MONOTONIC));
    if (status != Status::TIMEOUT) return status;
    const TimePoint before = std::chrono::steady_clock::now();
    if (before >= until) return status;
    std::this_thread::yield();
    if (std::chrono::steady_clock::now() - before > SpinPolicy::kLongYield) {
      spin_.disturbed();
      return status;
    }
  }
}

bool GrpcCompletions::serve_one() {
  void* tag = nullptr;
  bool ok = false;
  const TimePoint begun = std::chrono::steady_clock::now();
  Status status = Status::TIMEOUT;
  if (spin_.worth_while()) status = look(begun + spin_.limit(), &tag, &ok);
  if (status == Status::TIMEOUT) {
    status = queue_.AsyncNext(&tag, &ok, gpr_inf_future(GPR_CLOCK_MONOTONIC));
  }
  if (status != Status::GOT_EVENT) return false;
  spin_.waited(std::chrono::steady_clock::now() - begun);
  const ServingThreads::Work work;
  static_cast<GrpcOperation*>(tag)->ended(ok);
  return true;
}

}  // namespace weft::internal
