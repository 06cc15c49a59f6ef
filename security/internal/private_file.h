// Reads files whose content other users must not know.
//
// Thread safety: free functions.
// Errors: NotFound (no such file), Unavailable (it cannot be opened or read), InvalidArgument (no
// regular file, or too long), PermissionDenied (other users could read or change it). Each text
// names the file.
#pragma once

#include <cstddef>
#include <string>

#include "absl/status/statusor.h"
#include "weft/security/secret_bytes.h"

namespace weft::security_internal {

// Only this user and root may own the file, and nobody else may read or write it. Members of its
// group may read it if root owns it: Kubernetes gives secrets to a container that way.
absl::StatusOr<SecretBytes> read_private_file(const std::string& path, size_t most);

}  // namespace weft::security_internal
