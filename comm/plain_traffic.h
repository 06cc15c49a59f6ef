// Reads from the environment whether process groups may send tensors between hosts in clear.
//
// Thread safety: a free function. The environment must not change during a call.
// Errors: c10::ValueError: a variable has an unknown value. The text names it.
#pragma once

#include "weft/security/security_mode.h"

namespace weft {

// What WEFT_SECURITY and WEFT_PLAIN_COLLECTIVES say (security/security_mode.h).
PlainTraffic plain_traffic_of_environment();

}  // namespace weft
