// Identifies this host, so that a group can tell its hosts apart.
//
// Thread safety: a free function.
#pragma once

#include <string>

namespace weft::comm_internal {

// Returns equal texts to two processes that can share memory over a local socket. They are in the
// same boot of the same machine, and in the same network namespace (abstract sockets belong to it).
std::string host_identity();

}  // namespace weft::comm_internal
