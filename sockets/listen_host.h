// Reads which address of this host its peers on other hosts should use.
//
// Thread safety: as read_process_environment.
#pragma once

#include <string>

#include "absl/status/statusor.h"
#include "weft/base/environment.h"

namespace weft {

// The value of WEFT_LISTEN_HOST, if it is set and not empty. Otherwise an address of the first
// interface in the list WEFT_SOCKET_IFNAME ("eth0" or "ib0,eth0") that runs and has an address.
// Names must match exactly. IPv4 comes before IPv6, which is in brackets. Link-local addresses of
// IPv6 do not count. "" if neither variable is set.
// Errors: InvalidArgument (no interface of the list runs with an address; the text names those that
// do), Internal (the interfaces cannot be read).
absl::StatusOr<std::string> find_listen_host(
    const EnvironmentReader& read = read_process_environment);

}  // namespace weft
