// The two messages that open a connection between two workers of one host, over a local socket.
//
// HELLO goes from the dialling end to the accepting one, with two descriptors: the memory of the
// pair and the wake bits of the dialler. WELCOME is the answer, with the wake bits of the acceptor
// unless it refuses. Each is one message: a fixed header, then a serialized wire::Hello.
//
//   u64 layout   a hash of this build's layout of shared memory
//   u32 slot     the bit that the receiver sets in the sender's wake bits
//   u32 bytes    HELLO: the size of each ring of frames; WELCOME: 0
//   u64 nonce    HELLO: 0; WELCOME: the number in the pair's memory, plus 1
//
// Thread safety: pure functions.
// Errors: InvalidArgument, FailedPrecondition (another layout), and those of parse_hello
// (rpc/transport/hello.h).
// Protocol: docs/data_plane.md, "Connections".
#pragma once

#include <cstddef>
#include <cstdint>
#include <string>
#include <string_view>

#include "absl/status/statusor.h"
#include "weft/proto/weft.pb.h"

namespace weft::rpc_internal {

// The largest ring of frames that a peer may ask for: the acceptor uses as much memory.
inline constexpr size_t kMostFrameRing = size_t{16} << 20;

struct Introduction {
  uint32_t slot = 0;
  uint32_t ring_bytes = 0;
  uint64_t nonce = 0;
  wire::Hello hello;
};

std::string encode_introduction(const Introduction& introduction);
// Checks all but the nonce: slot and ring size are valid.
absl::StatusOr<Introduction> decode_introduction(std::string_view message);

// Where a worker can be dialled on this host, as text without spaces: the host and the name of its
// listener. Two processes have the same host if they can open each other's abstract sockets.
std::string local_address(const std::string& listener);
// Returns the listener's name. FailedPrecondition: the address is of another host, or none.
absl::StatusOr<std::string> listener_at(const std::string& local_address);

}  // namespace weft::rpc_internal
