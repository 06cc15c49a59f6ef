// Parses the hello with which a worker introduces itself to the far end of a connection.
//
// Thread safety: pure functions.
// Errors: InvalidArgument (none, too large, cannot be parsed, or its name, group, address or
// role must not be printed), PermissionDenied (another protocol version).
// Protocol: proto/weft.proto, message Hello.
#pragma once

#include <cstdint>
#include <string>
#include <string_view>

#include "absl/status/statusor.h"
#include "weft/proto/weft.pb.h"
#include "weft/rpc/transport/transport.h"

namespace weft::rpc_internal {

inline constexpr uint32_t kProtocolVersion = 6;
// A longer hello is refused. Address, group, name and role have at most 5.3 KiB.
inline constexpr size_t kMostHello = size_t{8} << 10;

// The text goes into errors and logs, so it is checked before any use.
absl::StatusOr<wire::Hello> parse_hello(std::string_view text);
wire::Hello hello_of(const PeerIdentity& self);
PeerIdentity identity_of(const wire::Hello& hello);

}  // namespace weft::rpc_internal
