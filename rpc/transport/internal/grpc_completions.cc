#include "weft/rpc/transport/internal/grpc_completions.h"

#include <ctime>
#include <thread>

#include "weft/async/serving_threads.h"
#include "weft/rpc/transport/internal/grpc_stream.h"

namespace weft::rpc_internal {
namespace {

// The processor time that this thread has used.
Nanoseconds used_time() {
  timespec used{};
  clock_gettime(CLOCK_THREAD_CPUTIME_ID, &used);
  return std::chrono::seconds(used.tv_sec) + std::chrono::nanoseconds(used.tv_nsec);
}

gpr_timespec no_limit() { return gpr_inf_future(GPR_CLOCK_MONOTONIC); }

}  // namespace

GrpcCompletions::Status GrpcCompletions::look(void** tag, bool* ok) {
  looks_.fetch_add(1, std::memory_order_relaxed);
  const TimePoint begun = std::chrono::steady_clock::now();
  const Nanoseconds used = used_time();
  while (true) {
    const Status status = queue_.AsyncNext(tag, ok, gpr_time_0(GPR_CLOCK_MONOTONIC));
    const Nanoseconds time = std::chrono::steady_clock::now() - begun;
    if (status == Status::TIMEOUT && time < spin_.limit()) {
      std::this_thread::yield();
      continue;
    }
    // This thread was kept from running: by another thread, by another cgroup, or because its quota
    // was used up.
    if (time > SpinPolicy::kLongBreak && time - (used_time() - used) > SpinPolicy::kLongBreak) {
      spin_.disturbed();
    } else if (status == Status::TIMEOUT) {
      spin_.in_vain();
    } else {
      spin_.found(time);
    }
    return status;
  }
}

bool GrpcCompletions::serve_one() {
  void* tag = nullptr;
  bool ok = false;
  Status status = Status::TIMEOUT;
  if (spin_.worth_while()) {
    status = look(&tag, &ok);
    if (status == Status::TIMEOUT) status = queue_.AsyncNext(&tag, &ok, no_limit());
  } else {
    const TimePoint begun = std::chrono::steady_clock::now();
    status = queue_.AsyncNext(&tag, &ok, no_limit());
    spin_.slept(std::chrono::steady_clock::now() - begun);
  }
  if (status != Status::GOT_EVENT) return false;
  const ServingThreads::Work work;
  static_cast<GrpcOperation*>(tag)->ended(ok);
  return true;
}

}  // namespace weft::rpc_internal
