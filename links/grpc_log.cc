#include "weft/links/grpc_log.h"

#include <cstdlib>
#include <cstring>

#include <grpc/support/log.h>

#include "absl/strings/str_cat.h"
#include "weft/base/log.h"

namespace weft {
namespace {

constexpr const char* kNoErrors[] = {"No match found for server name", "::cancel_check_peer error"};

void pass_on(gpr_log_func_args* entry) {
  for (const char* text : kNoErrors) {
    if (std::strstr(entry->message, text) != nullptr) return;
  }
  static WarningLimit limit;
  limit.warn(absl::StrCat("gRPC: ", entry->message));
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

}  // namespace weft
