// Keeps the rendezvous stores that rank 0 hosts in this process, by place. A rank 0 that joins
// again goes on with the store that the other ranks know.
//
// Thread safety: all functions may be called from any thread.
// Lifetime: a store stops with its last user. If a user has called keep_hosted_store, it serves on
// without users. It does so until the next user takes it over, or until the process exits. So at
// most one store is left for each place at which the process has hosted. The exit of the process
// destroys no store and waits for none.
// A forked child has none of its parent's stores, because the threads that serve them stay in the
// parent. A handle that it inherits does nothing when it is destroyed.
#pragma once

#include <functional>
#include <memory>
#include <string>

#include "absl/status/statusor.h"
#include "weft/store/store_handle.h"

namespace weft {

using MakeStore = std::function<absl::StatusOr<std::unique_ptr<StoreHandle>>()>;

// Returns a user of the store that this process hosts at `where`. If there is none, `make` hosts
// it. `where` must contain the address and the security mode: callers with equal `where` get one
// store. Blocking: as `make`, also while it runs for another user of the same place.
//
// Errors: those of `make`.
absl::StatusOr<std::shared_ptr<StoreHandle>> share_hosted_store(const std::string& where,
                                                                const MakeStore& make);

// For users of share_hosted_store, while they hold the store. If there is no such store, it does
// nothing.
void keep_hosted_store(const std::string& where);

}  // namespace weft
