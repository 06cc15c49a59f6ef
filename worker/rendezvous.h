// Opens the rendezvous store of a job: c10d's TCPStore, hosted by the launcher or by rank 0.
//
// Thread safety: all methods may be called from any thread; calls on one store run one after
// another, on a thread of its own.
// Lifetime: a hosted store serves until it is destroyed; that of open_rendezvous_store longer, see
// there.
// Blocking, errors: as rpc/rendezvous_store.h says. Every c10 exception becomes a status. A server
// that accepts and never answers costs each call the timeout and no more: the thread that hangs in
// c10d, which cannot be interrupted, is left behind.
#pragma once

#include <cstdint>
#include <memory>
#include <string>

#include "absl/status/statusor.h"
#include "absl/time/time.h"
#include "weft/base/launch_environment.h"
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
// host on all interfaces. Errors: AlreadyExists (port in use), NotFound (unknown host).
absl::StatusOr<HostedStore> host_rendezvous_store(const RendezvousOptions& options);

// Connects to a server; waits for it to appear. Errors: DeadlineExceeded naming host and port,
// Unavailable (what answers there is no TCPStore).
absl::StatusOr<std::unique_ptr<RendezvousStore>> connect_rendezvous_store(
    const RendezvousOptions& options);

// Hosts or connects, as the launch environment says. All who host at one address in this process
// share one store (and the timeout of the first), which ends with the last of them. A worker that
// hosts leaves it to the next one at this address, if it ends by `shutdown` or the others go on
// without it. If no other comes, that store serves until the process ends.
absl::StatusOr<std::unique_ptr<RendezvousStore>> open_rendezvous_store(
    const LaunchEnvironment& environment, absl::Duration timeout = absl::Seconds(60));

}  // namespace weft
