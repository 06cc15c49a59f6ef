// What tells the hosts of a group apart.
//
// Thread safety: a free function.
#pragma once

#include <string>

namespace weft::comm_internal {

// Equal for two processes that can share memory over a local socket: the same boot of the same
// machine, seen from the same network namespace (to which abstract sockets belong).
std::string host_identity();

}  // namespace weft::comm_internal
