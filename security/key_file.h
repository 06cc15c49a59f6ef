// Reads files of secrets, keys and certificates.
//
// Thread safety: free functions.
// Blocking: read_pipe, until the far end has closed the pipe.
// Errors: NotFound (no such file), Unavailable (it cannot be opened or read), InvalidArgument (no
// regular file, or too long), PermissionDenied (other users could change it, or read a private
// one), DeadlineExceeded (a pipe). Each text names the file.
#pragma once

#include <cstddef>
#include <string>
#include <string_view>

#include "absl/status/statusor.h"
#include "weft/base/clock.h"
#include "weft/security/secret_bytes.h"
#include "weft/sockets/file_descriptor.h"

namespace weft {

// A sealed file in memory, for other processes of this user.
struct KeptFile {
  FileDescriptor file;
  std::string path;  // for any process, as long as `file` is open
};
// `name` is for people. Unavailable: the system has no memory or no descriptor for it.
absl::StatusOr<KeptFile> keep_in_memory(const std::string& name, std::string_view content);

namespace security_internal {

enum class Readers {
  kOwner,      // members of the file's group may read it if root owns it, as Kubernetes does
  kEverybody,  // certificates
};

// Only this user or root may own the file and write it.
absl::StatusOr<SecretBytes> read_file(const std::string& path, size_t most, Readers readers);

// Reads a pipe of this user or root to its end. DeadlineExceeded: it has not ended by the deadline.
absl::StatusOr<SecretBytes> read_pipe(const std::string& path, size_t most, TimePoint deadline);

}  // namespace security_internal
}  // namespace weft
