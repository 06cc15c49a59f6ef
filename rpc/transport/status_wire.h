// A failed call's status on the wire, with the facts that its caller needs.
//
// Thread safety: pure functions.
#pragma once

#include <string>
#include <string_view>

#include "absl/status/status.h"

namespace weft::wire {
class Status;
}

namespace weft::rpc_internal {

void encode_status(const absl::Status& status, wire::Status& out);
// An unknown code becomes Unknown; the message stays.
absl::Status decode_status(const wire::Status& in);

// A serialized wire::Meta that holds nothing but the status: the meta of an error reply.
std::string encode_status_meta(const absl::Status& status);

}  // namespace weft::rpc_internal
