// What Weft sets in gRPC for the whole process.
//
// Thread safety: free functions.
#pragma once

#include <limits>
#include <utility>

#include <grpc/impl/codegen/grpc_types.h>

namespace weft {

// Call it before gRPC is used. It passes gRPC's errors to Weft's log (links/grpc_log.h). Abseil
// stops looking for deadlocks, unless the build has assertions (NDEBUG is not set): Debian's Abseil
// looks in release builds too, which makes every lock of gRPC slower.
void prepare_grpc();

// Call it when gRPC is no longer used. gRPC 1.51 also counts a timer thread that the system refused
// to start, and its shutdown waits for this thread for ever. So if threads were refused, this
// function keeps gRPC from shutting down: gRPC's threads stay, and its user can stop.
void keep_grpc_if_threads_are_refused();

// Makes TCP give up a connection that this end has dialled, if the far end has taken nothing for 30
// s. Until then gRPC keeps a write that waits for the socket, even if its call was cancelled.
//
// gRPC sets a socket's TCP_USER_TIMEOUT only if it sends pings, and only on sockets that it dials.
// So that it sends none, the first one is due in 24 days. GrpcSockets sets the timeout of accepted
// sockets.
inline constexpr std::pair<const char*, int> kGiveUpArguments[] = {
    {GRPC_ARG_KEEPALIVE_TIME_MS, std::numeric_limits<int>::max() - 1},
    {GRPC_ARG_KEEPALIVE_TIMEOUT_MS, 30'000},
};

}  // namespace weft
