// Keeps the rendezvous stores that rank 0 hosts in this process, by address. A rank 0 that joins
// again goes on with the store that the other ranks know.
//
// Thread safety: all functions may be called from any thread.
// Lifetime: a store stops with its last user. If a user has called keep_hosted_store, it serves on
// without users. It does so until the next user takes it over, or until the process exits. So at
// most one store is left for each address at which the process has hosted. The exit of the process
// destroys no store and waits for none.
// A forked child has none of its parent's stores, because the threads that serve them stay in the
// parent.
#pragma once

#include <cstdint>
#include <functional>
#include <memory>
#include <string>

#include "absl/status/statusor.h"
#include "weft/rpc/rendezvous/rendezvous_store.h"

namespace weft::worker_internal {

using MakeStore = std::function<absl::StatusOr<std::unique_ptr<RendezvousStore>>()>;

// Returns a user of the store at `host`:`port`. If there is no store, `make` hosts it. Port 0
// stands for another port each time: `make` always runs, and its store is not shared.
// Blocking: as `make`, also while it runs for another user of the same address.
// Errors: those of `make`.
absl::StatusOr<std::unique_ptr<RendezvousStore>> share_hosted_store(const std::string& host,
                                                                    uint16_t port,
                                                                    const MakeStore& make);

// For users of share_hosted_store, while they hold the store. If there is no such store, it does
// nothing.
void keep_hosted_store(const std::string& host, uint16_t port);

}  // namespace weft::worker_internal
