#include "weft/bench/contestants/rpc/weft_mode.h"

#include "weft/worker/worker_options.h"

namespace weft::bench {

std::string name_of(WeftMode mode) {
  switch (mode) {
    case WeftMode::kDefault:
      return "weft";
    case WeftMode::kBlocking:
      return "weft blocking";
    case WeftMode::kTcp:
      return "weft tcp";
    case WeftMode::kUnix:
      return "weft unix";
    case WeftMode::kMtls:
      return "weft mtls";
  }
  return "";
}

void set_mode(WorkerOptions& options, WeftMode mode) {
  switch (mode) {
    case WeftMode::kDefault:
      break;
    case WeftMode::kTcp:
      options.same_host = WorkerOptions::SameHost::kOff;
      options.security = WorkerOptions::Security::kNone;
      break;
    case WeftMode::kUnix:
      options.same_host = WorkerOptions::SameHost::kOff;
      break;
    case WeftMode::kMtls:
      options.same_host = WorkerOptions::SameHost::kOff;
      options.security = WorkerOptions::Security::kMtls;
      break;
    case WeftMode::kBlocking:
      options.spin = Nanoseconds::zero();
      break;
  }
}

}  // namespace weft::bench
