// Opens the rendezvous store of the job to which this process belongs.
//
// - If the launcher serves it, its address is in WEFT_STORE (weft_launch).
//
// - If the launcher serves c10d's TCPStore (torchrun), rank 0 hosts the job's store, and the others
//   read its address there. Then the store ends with the process of rank 0.
//
// - Otherwise rank 0 hosts it at MASTER_ADDR and MASTER_PORT.
//
// All users in this process that host at one address share one store, with the timeout of the first
// user. It stops with the last of them. A worker that hosts keeps the store for the next user at
// this address (keep_job_store), if it leaves by `shutdown` or the others go on without it. If
// there is no next user, the store serves until the process exits.
//
// Thread safety: all functions may be called from any thread.
// Blocking, errors: as in store/rendezvous.h and store/job/tcp_store_notice.h.
#pragma once

#include <memory>

#include "absl/status/statusor.h"
#include "absl/time/time.h"
#include "weft/launcher/launch_environment.h"
#include "weft/security/security_mode.h"
#include "weft/store/store_handle.h"

namespace weft {

// `timeout` limits opening. It limits each later call too, if it is less than 30 s.
absl::StatusOr<std::shared_ptr<StoreHandle>> open_job_store(
    const LaunchEnvironment& environment, SecurityMode security = SecurityMode::kAuto,
    absl::Duration timeout = absl::Seconds(60));

// For a process that hosts the store that it has opened with the same arguments, while it holds it.
// The store serves on for the next user in this process.
void keep_job_store(const LaunchEnvironment& environment, SecurityMode security);

}  // namespace weft
