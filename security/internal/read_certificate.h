// Reads certificates in PEM.
//
// Thread safety: free functions.
#pragma once

#include <string>
#include <string_view>
#include <vector>

#include "absl/status/statusor.h"
#include "weft/security/internal/openssl.h"
#include "weft/security/secret_bytes.h"

namespace weft::security_internal {

// At least one. InvalidArgument: the text, which `what` names, holds none, or a broken one.
absl::StatusOr<std::vector<Certificate>> read_certificates(std::string_view text,
                                                           std::string_view what);
// InvalidArgument: it is no private key in PEM, or has a password.
absl::StatusOr<Key> read_key(const SecretBytes& pem);
// InvalidArgument: it is no public key in PEM.
absl::StatusOr<Key> read_public_key(std::string_view pem);
// The URIs among its subject alternative names, each with all its bytes.
std::vector<std::string> uris_of(X509* certificate);
// "2026-11-29 10:00:00 UTC"
std::string text_of(const ASN1_TIME* time);

}  // namespace weft::security_internal
