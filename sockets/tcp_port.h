// Opens, accepts at and probes TCP ports. Errors of listening and probing name the host.
//
// Thread safety: all functions may be called from any thread.
// Blocking: wait_until_reachable, and the look-up of host names.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/time/time.h"
#include "weft/sockets/file_descriptor.h"

namespace weft {

struct ListeningPort {
  FileDescriptor socket;  // close-on-exec
  uint16_t port = 0;
};

// Whether the host is "localhost" or a literal loopback address.
bool is_loopback_name(const std::string& host);

// The address of this machine's interface that reaches `host`; IPv6 in brackets. nullopt: the host
// is not known, there is no way to it, or it means this machine by a loopback address.
std::optional<std::string> address_towards(const std::string& host, uint16_t port);

// The same, or else the name of this machine.
std::string host_towards(const std::string& host, uint16_t port);

// Listens on `port` (0: any free one). If the host is a literal loopback address or "localhost", it
// binds that address only. Any other host binds all interfaces, because its name may mean another
// address on other machines.
// Errors: AlreadyExists (port in use), NotFound (unknown host), Unavailable.
absl::StatusOr<ListeningPort> listen_on(const std::string& host, uint16_t port);

// Listens on `port` (0: any free one) at each address to which `host` resolves, and at no other.
// All results have the same port, and accepting at them does not block. Addresses that this machine
// does not have are skipped. If none is left, it returns Unavailable. IPv6 addresses may stand in
// brackets, and :: also takes IPv4.
// Errors: as listen_on.
absl::StatusOr<std::vector<ListeningPort>> listen_on_addresses_of(const std::string& host,
                                                                  uint16_t port);

// The same for a host by whose name other machines know this one. "localhost" and literal loopback
// addresses are no such names: it listens only there. If this machine does not have the addresses
// for which another name stands, or the name stands only for loopback addresses here, it listens on
// all interfaces. That is so for virtual addresses of a cluster, and on Debian for the machine's
// own name.
absl::StatusOr<std::vector<ListeningPort>> listen_for_others(const std::string& host,
                                                             uint16_t port);

struct AcceptedTcp {
  FileDescriptor socket;  // close-on-exec, non-blocking
  std::string address;    // of the far end; an IPv4 address also at a socket of ::
  uint16_t port = 0;      // of the far end
};

// Accepts one connection at a listening socket that is non-blocking.
// Errors: DeadlineExceeded (nobody waits), ResourceExhausted (no descriptors or no memory),
// Internal.
absl::StatusOr<AcceptedTcp> accept_tcp(int listening);

// Tries until something accepts connections there, or until `timeout`. An unknown host is tried
// again too, because a cluster's name service may be late. DeadlineExceeded: the text has the last
// reason.
absl::Status wait_until_reachable(const std::string& host, uint16_t port, absl::Duration timeout);

}  // namespace weft
