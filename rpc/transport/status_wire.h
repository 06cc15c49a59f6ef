// Encodes a failed call's status for the wire, with the facts that its caller needs: whether the
// function ran, which worker failed, and the error trail.
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
// An unknown code becomes Unknown, and the message stays. Names and the error trail come from a
// peer, so what is not printable in them is replaced.
absl::Status decode_status(const wire::Status& in);

// Returns the meta of an error reply: a serialized wire::Meta that holds only the status.
std::string encode_status_meta(const absl::Status& status);

}  // namespace weft::rpc_internal
