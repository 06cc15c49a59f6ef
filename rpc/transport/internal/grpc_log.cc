#include "weft/rpc/transport/internal/grpc_log.h"

#include <atomic>
#include <chrono>
#include <cstdint>
#include <cstdlib>
#include <cstring>

#include <grpc/support/log.h>

#include "absl/strings/str_cat.h"
#include "weft/base/log.h"

namespace weft::rpc_internal {
namespace {

constexpr int64_t kBetweenLines = 1'000'000'000;  // ns

constexpr const char* kNoErrors[] = {"No match found for server name", "::cancel_check_peer error"};

void pass_on(gpr_log_func_args* entry) {
  for (const char* text : kNoErrors) {
    if (std::strstr(entry->message, text) != nullptr) return;
  }
  static std::atomic<int64_t> next{INT64_MIN};
  static std::atomic<uint64_t> left_out{0};
  const int64_t now = std::chrono::steady_clock::now().time_since_epoch().count();
  int64_t due = next.load();
  if (now < due || !next.compare_exchange_strong(due, now + kBetweenLines)) {
    ++left_out;
    return;
  }
  const uint64_t lines = left_out.exchange(0);
  log_warning("gRPC: ", entry->message,
              lines == 0 ? "" : absl::StrCat(" (", lines, " lines of gRPC were left out)"));
}

}  // namespace

void limit_grpc_log() {
  [[maybe_unused]] static const bool once = [] {
    if (std::getenv("GRPC_VERBOSITY") == nullptr && std::getenv("GRPC_TRACE") == nullptr) {
      gpr_set_log_function(pass_on);
    }
    return true;
  }();
}

}  // namespace weft::rpc_internal
