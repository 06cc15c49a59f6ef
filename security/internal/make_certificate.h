// Makes and signs the certificates of authorities and workers.
//
// Thread safety: free functions.
// Blocking: each takes about 1 ms of one processor.
// Errors: Internal (OpenSSL fails).
// Protocol: X.509 version 3 (RFC 5280); names: security/certificate_name.h.
#pragma once

#include <chrono>
#include <optional>
#include <string>

#include "absl/status/statusor.h"
#include "weft/security/certificate_name.h"
#include "weft/security/internal/openssl.h"
#include "weft/security/secret_bytes.h"

namespace weft::security_internal {

// A new P-256 key.
absl::StatusOr<Key> make_key();

// From an hour ago, because clocks differ, and for `lasts`. Without it: from 2020 and for ever, so
// that no clock matters.
struct Validity {
  std::optional<std::chrono::hours> lasts;
};

// An authority that can sign.
struct Issuer {
  Key key;
  Certificate certificate;
};

// Its serial number is 1. So it has the same bytes each time, if it is valid for ever and
// signatures with the key are deterministic.
absl::StatusOr<Issuer> sign_authority(Key key, const Validity& validity);

// A worker's certificate for its `key`, of which only the public half counts.
absl::StatusOr<Certificate> sign_worker(const CertificateName& name, EVP_PKEY* key,
                                        const Issuer& issuer, const Validity& validity);

absl::StatusOr<std::string> pem_of(X509* certificate);
absl::StatusOr<SecretBytes> pem_of(EVP_PKEY* key);
absl::StatusOr<std::string> public_pem_of(EVP_PKEY* key);

}  // namespace weft::security_internal
