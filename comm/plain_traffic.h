// Decides whether a process group may send tensors between hosts in clear.
//
// Thread safety: free functions. The environment must not change during a call.
// Errors: c10::ValueError.
#pragma once

#include <string>
#include <vector>

#include "weft/security/security_mode.h"

namespace weft {

// What WEFT_SECURITY and WEFT_PLAIN_COLLECTIVES say (security/security_mode.h).
PlainTraffic plain_traffic_of_environment();

namespace comm_internal {

// `hosts` and `traffic` have one entry per rank. Warns or throws if the ranks are on several hosts.
void check_plain_traffic(const std::string& group, const std::vector<std::string>& hosts,
                         const std::vector<PlainTraffic>& traffic, int self);

}  // namespace comm_internal
}  // namespace weft
