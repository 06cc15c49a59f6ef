// Finds the secret that the processes of a job share. It proves that a process belongs to the job
// (docs/security.md).
//
// It is the content of a file, without white space at its ends. The file is the one that
// WEFT_SECRET_FILE names, otherwise $XDG_CONFIG_HOME/weft/secret, otherwise ~/.config/weft/secret.
// If one of the last two does not exist, the first process that needs it makes it: 32 random bytes
// in hexadecimal digits. If several processes do so at once, they agree on one content.
//
// Thread safety: free functions. No thread may change the process environment during the call.
// Blocking: reads a file.
// Errors, each with the file's name:
//
// - InvalidArgument: the content has less than 32 or more than 4,096 characters, or is not
// printable.
//
// - InvalidArgument: WEFT_SECRET is set. The environment of a process is no place for a secret.
//
// - PermissionDenied: users other than this one and root could read or write the file, or write the
//   folder `weft`. Members of the file's group may read it if root owns it.
//
// - NotFound, Unavailable: the file cannot be opened, read or made.
#pragma once

#include <chrono>
#include <optional>

#include "absl/status/statusor.h"
#include "weft/base/clock.h"
#include "weft/base/environment.h"
#include "weft/security/key_file.h"
#include "weft/security/secret_bytes.h"

namespace weft {

absl::StatusOr<SecretBytes> find_job_secret(
    const EnvironmentReader& read = read_process_environment);

// For a launcher whose WEFT_SECRET_FILE names a pipe, which only one process can read. Reads the
// secret, and keeps it in a file whose path is for the WEFT_SECRET_FILE of child processes.
// nullopt: WEFT_SECRET_FILE names no pipe.
//
// Blocking: until the pipe ends. Errors: as above, and DeadlineExceeded (it does not end in time).
absl::StatusOr<std::optional<KeptFile>> keep_secret_of_pipe(
    const EnvironmentReader& read = read_process_environment,
    Nanoseconds timeout = std::chrono::minutes(1));

}  // namespace weft
