// Passes gRPC's error log to Weft's (base/log.h).
//
// gRPC logs an error for each TLS handshake that fails, so a process that keeps dialling could fill
// the disk. This passes on one line in a second, with the number of those that it left out. It
// drops lines that are no errors: gRPC 1.51 writes them for each TLS connection, or when a server
// stops.
//
// Thread safety: a free function.
#pragma once

namespace weft {

// For the whole process, once. It replaces a log function that the program has set, and one that
// the program sets later replaces it. It does nothing if GRPC_VERBOSITY or GRPC_TRACE is set.
void limit_grpc_log();

}  // namespace weft
