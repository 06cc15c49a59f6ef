// Reads which address of this host its peers on other hosts should use.
//
// Thread safety: as read_process_environment.
#pragma once

#include <string>

#include "absl/status/statusor.h"
#include "weft/base/environment.h"

namespace weft {

// The value of WEFT_LISTEN_HOST. If it is not set or empty: the address of the first interface in
// the list WEFT_SOCKET_IFNAME ("eth0" or "ib0,eth0") that is up and has an address, IPv4 before
// IPv6, which is in brackets. "" if neither is set.
// Errors: InvalidArgument. This host has none of these interfaces; the text names those that it
// has.
absl::StatusOr<std::string> find_listen_host(
    const EnvironmentReader& read = read_process_environment);

}  // namespace weft
