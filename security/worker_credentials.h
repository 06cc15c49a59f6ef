// Finds the credentials with which a worker proves who it is.
//
// If WEFT_TLS_CERT, WEFT_TLS_KEY and WEFT_TLS_CA are set, these PEM files have the worker's
// certificate (then those between it and an authority), its key, and the authorities. Otherwise the
// worker signs a certificate itself, with the job's secret (security/job_secret.h).
//
// Thread safety: a free function. No thread may change the process environment during the call.
// Blocking: reads files.
// Errors: those of find_job_secret and check_credentials, with the files' names. Also:
//
// - InvalidArgument: only some of the three variables are set. The certificate is of another job or
//   another worker. The role or the worker's name cannot stand in a certificate.
//
// - PermissionDenied: users other than this one and root could read the key or change it.
#pragma once

#include <string_view>

#include "absl/status/statusor.h"
#include "weft/base/launch_environment.h"
#include "weft/security/certificates.h"

namespace weft {

absl::StatusOr<TlsCredentials> find_worker_credentials(
    std::string_view run_id, std::string_view role, std::string_view worker,
    const EnvironmentReader& read = read_process_environment);

}  // namespace weft
