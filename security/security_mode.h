// Reads how a group is protected: WEFT_SECURITY and WEFT_PLAIN_COLLECTIVES.
//
// Thread safety: free functions. No thread may change the process environment during a call.
// Errors: InvalidArgument, with the variable and its value.
#pragma once

#include <cstdint>
#include <string>
#include <string_view>

#include "absl/status/statusor.h"
#include "weft/base/environment.h"

namespace weft {

// docs/security.md says what each mode means.
enum class SecurityMode : uint8_t { kAuto, kMtls, kNone };

// "auto", "mtls" or "none".
std::string_view to_string(SecurityMode mode);

// kAuto if the variable is not set.
absl::StatusOr<SecurityMode> find_security_mode(
    const EnvironmentReader& read = read_process_environment);

// Whether tensors may travel between hosts in clear, as Gloo and NCCL send them.
enum class PlainTraffic : uint8_t { kAllow, kWarn, kRefuse };

// WEFT_PLAIN_COLLECTIVES=allow allows it. Otherwise kAuto warns, kMtls refuses, and kNone allows
// it.
absl::StatusOr<PlainTraffic> find_plain_traffic(
    const EnvironmentReader& read = read_process_environment);

}  // namespace weft
