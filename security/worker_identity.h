// Finds the identity with which a worker proves who it is, and the one with which a process proves
// to the job's store that it belongs to the job.
//
// If WEFT_TLS_CERT, WEFT_TLS_KEY and WEFT_TLS_CA are set, these PEM files have the worker's
// certificate (then those between it and an authority), its key, and the authorities. They are read
// again every 5 s, and a new certificate takes the place of the old one. Otherwise the
// worker signs a certificate itself, with the job's secret (security/job_secret.h).
//
// Thread safety: free functions. No thread may change the process environment during the call.
// Blocking: reads files.
// Errors: those of find_job_secret and check_credentials, with the files' names. Also:
//
// - InvalidArgument: only some of the three variables are set. The certificate is of another job,
//   another worker or another role. The role or the worker's name cannot stand in a certificate, or
//   the name is that of another rank ("rank.3").
//
// - PermissionDenied: users other than this one and root could read the key or change it.
#pragma once

#include <memory>
#include <string_view>

#include "absl/status/statusor.h"
#include "weft/base/environment.h"
#include "weft/security/certificate_name.h"
#include "weft/security/tls_identity.h"

namespace weft {

absl::StatusOr<std::shared_ptr<TlsIdentity>> find_worker_identity(
    std::string_view run_id, std::string_view role, const WorkerClaim& worker,
    const EnvironmentReader& read = read_process_environment,
    Nanoseconds every = std::chrono::seconds(5));

struct StoreIdentity {
  std::shared_ptr<TlsIdentity> tls;
  bool proves_name = false;  // a site has issued the certificate; otherwise it proves only the job
};

// For a process that serves or calls the job's store, and perhaps is no worker. A certificate of a
// site may have any role and worker of the job, and if `run_id` is empty, it may be of any job. If
// there is none, the job's secret makes one. That one is the same for all jobs of the secret,
// because launchers call the store before they agree on a run id.
absl::StatusOr<StoreIdentity> find_store_identity(
    std::string_view run_id, const EnvironmentReader& read = read_process_environment,
    Nanoseconds every = std::chrono::seconds(5));

}  // namespace weft
