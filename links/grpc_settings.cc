#include "weft/links/grpc_settings.h"

#include <thread>
#include <utility>

#include <grpc/grpc.h>

#include "absl/status/statusor.h"
#include "absl/synchronization/mutex.h"
#include "weft/base/thread.h"
#include "weft/links/grpc_log.h"

namespace weft {
namespace {

void stop_deadlock_detection() {
#ifdef NDEBUG
  static const bool once = [] {
    absl::SetMutexDeadlockDetectionMode(absl::OnDeadlockCycle::kIgnore);
    return true;
  }();
  (void)once;
#endif
}

}  // namespace

void prepare_grpc() {
  stop_deadlock_detection();
  limit_grpc_log();
}

void keep_grpc_if_threads_are_refused() {
  // This thread only tests the system.
  absl::StatusOr<std::thread> another = start_thread("gRPC's end", [] {});
  if (another.ok()) another->join();
  if (!threads_were_refused()) return;
  [[maybe_unused]] static const bool kept = [] {
    grpc_init();
    return true;
  }();
}

}  // namespace weft
