// Identifies this host, so that a group can tell its hosts apart.
//
// Thread safety: a free function.
#pragma once

#include <string>

namespace weft {

// Returns equal texts, without spaces and commas, to two processes that can share memory over a
// local socket. They are in the same boot of the same machine, and in the same network namespace
// (abstract sockets belong to it).
std::string host_identity();

}  // namespace weft
