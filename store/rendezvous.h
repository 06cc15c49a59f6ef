// Hosts the rendezvous store of a job, or connects to it.
//
// Where the store is follows from the host and the port that all processes of the job know:
//
// - With WEFT_SECURITY=auto and a loopback host, it is a unix socket, whose name has the port's
//   number. Only processes of this user and root can connect, and TCP ports stay free.
//
// - Otherwise it is a TCP port. Both ends prove that they belong to the job by a certificate
//   (security/worker_identity.h), unless WEFT_SECURITY is none.
//
// Thread safety: all functions may be called from any thread.
// Lifetime: a hosted store serves until it is destroyed.
// Blocking, errors: as in store/store_handle.h; also those of find_store_identity.
#pragma once

#include <cstdint>
#include <memory>
#include <optional>
#include <string>

#include "absl/status/statusor.h"
#include "absl/time/time.h"
#include "weft/security/security_mode.h"
#include "weft/security/worker_identity.h"
#include "weft/store/store_handle.h"

namespace weft {

struct RendezvousOptions {
  std::string host = "127.0.0.1";
  uint16_t port = 29500;                            // hosting: 0 takes a free one
  absl::Duration timeout = absl::Seconds(60);       // of connecting, or until the host is known
  absl::Duration call_timeout = absl::Seconds(30);  // of each later call
  SecurityMode security = SecurityMode::kAuto;
  std::string run_id = "";  // compared with a certificate of a site; "": not known yet
  // nullopt: the one of find_store_identity.
  std::optional<StoreIdentity> identity = std::nullopt;
};

struct HostedStore {
  std::unique_ptr<StoreHandle> store;
  uint16_t port = 0;  // the one that others must know
};

// Returns the address of the store that these options host. The port must not be 0.
std::string rendezvous_address(const RendezvousOptions& options);

// Whether callers of that store prove by certificates that they belong to the job.
bool needs_certificates(const RendezvousOptions& options);

// Starts a store on this machine. A TCP store listens at the addresses for which the host stands
// (listen_for_others, sockets/tcp_port.h). If the host is unknown, it tries again until the
// timeout, because a cluster's name service may be late.
// Errors: AlreadyExists (port or name in use), NotFound (unknown host).
absl::StatusOr<HostedStore> host_rendezvous_store(const RendezvousOptions& options);

// Connects to the store that the same options host, and waits until it is there.
// Errors: those of store/store_client.h; DeadlineExceeded names host and port.
absl::StatusOr<std::unique_ptr<StoreHandle>> connect_rendezvous_store(
    const RendezvousOptions& options);

// The same by the store's address: HOST:PORT, or "unix:" and a name. Host and port of the options
// do not count. InvalidArgument: it is no such address, or a unix socket although the security is
// not kAuto.
absl::StatusOr<std::unique_ptr<StoreHandle>> connect_to_store(const std::string& address,
                                                              const RendezvousOptions& options);
// The same, but it makes no connection yet.
absl::StatusOr<std::unique_ptr<StoreHandle>> store_at(const std::string& address,
                                                      const RendezvousOptions& options);

}  // namespace weft
