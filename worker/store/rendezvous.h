// Opens the rendezvous store of a job: c10d's TCPStore, hosted by the launcher or by rank 0.
//
// Thread safety: all methods may be called from any thread. Calls on one store run one after
// another, on a thread of its own.
// Lifetime: a hosted store serves until it is destroyed. A store of open_rendezvous_store may serve
// longer, see there.
// Blocking, errors: as in rpc/rendezvous/rendezvous_store.h. Every c10 exception becomes a status.
// If a server accepts and never answers, each call takes no longer than its timeout. The thread
// that hangs in c10d cannot be interrupted and is left behind.
#pragma once

#include <cstdint>
#include <memory>
#include <string>

#include "absl/status/statusor.h"
#include "absl/time/time.h"
#include "weft/launcher/launch_environment.h"
#include "weft/rpc/rendezvous/rendezvous_store.h"

namespace weft {

struct RendezvousOptions {
  std::string host = "127.0.0.1";
  uint16_t port = 29500;                       // hosting: 0 takes a free one
  absl::Duration timeout = absl::Seconds(60);  // of opening, and of each later round trip
};

struct HostedStore {
  std::unique_ptr<RendezvousStore> store;
  uint16_t port = 0;
};

// Starts a server on this machine. A literal loopback host is served on loopback only, any other
// host on all interfaces.
// Errors: AlreadyExists (port in use), NotFound (unknown host).
absl::StatusOr<HostedStore> host_rendezvous_store(const RendezvousOptions& options);

// Connects to a server, and waits until there is one.
// Errors: DeadlineExceeded (names host and port), Unavailable (the server there is no TCPStore).
absl::StatusOr<std::unique_ptr<RendezvousStore>> connect_rendezvous_store(
    const RendezvousOptions& options);

// Hosts or connects, as the launch environment says. All users in this process that host at one
// address share one store, with the timeout of the first user. It stops with the last of them.
// A worker that hosts keeps the store for the next user at this address, if it leaves by `shutdown`
// or the others go on without it. If there is no next user, the store serves until the process
// exits.
absl::StatusOr<std::unique_ptr<RendezvousStore>> open_rendezvous_store(
    const LaunchEnvironment& environment, absl::Duration timeout = absl::Seconds(60));

}  // namespace weft
