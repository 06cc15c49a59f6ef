// Makes and parses the hellos with which two workers introduce themselves to each other.
//
// Thread safety: pure functions.
// Errors: InvalidArgument (none, too large, cannot be parsed, or its name, group, address or
// role is not printable), PermissionDenied (no common protocol version).
// Protocol: proto/weft.proto, message Hello.
#pragma once

#include <cstdint>
#include <string>
#include <string_view>

#include "absl/status/statusor.h"
#include "weft/proto/weft.pb.h"
#include "weft/rpc/transport/transport.h"

namespace weft::rpc_internal {

// A longer hello is refused. Address, group, name and role have at most 5.3 KiB.
inline constexpr size_t kMostHello = size_t{8} << 10;

// The text goes into errors and logs, so it is checked before any use.
absl::StatusOr<wire::Hello> parse_hello(std::string_view text);
// The newest version that this end and the sender of the hello speak. PermissionDenied: none.
absl::StatusOr<uint32_t> common_protocol(const wire::Hello& hello, ProtocolRange here);
// The hello of a dialler.
wire::Hello hello_of(const PeerIdentity& self);
// The answer to a hello; `protocol` is the result of common_protocol.
wire::Hello answer_of(const PeerIdentity& self, uint32_t protocol);
PeerIdentity identity_of(const wire::Hello& hello);

}  // namespace weft::rpc_internal
