// Makes certificates, and checks those that come from files.
//
// Thread safety: plain values; const methods may be called from any thread.
// Blocking: making a certificate takes about 1 ms of one processor.
#pragma once

#include <memory>
#include <string>
#include <string_view>
#include <vector>

#include "absl/status/statusor.h"
#include "weft/security/certificate_name.h"
#include "weft/security/secret_bytes.h"

namespace weft {

namespace security_internal {
struct Issuer;
}

// What one process needs for mutual TLS. All three are PEM texts.
struct TlsCredentials {
  std::string authorities;  // certificates that peers' certificates must lead to
  std::string chain;        // this process's certificate, then those between it and an authority
  SecretBytes key;          // of the first certificate in `chain`
  CertificateName name;     // the name that `chain` proves
};

// A new P-256 key, as PEM texts.
struct KeyPair {
  SecretBytes key;
  std::string public_key;
};
absl::StatusOr<KeyPair> make_key_pair();

// The certificate authority of one job. All processes that know the job's secret derive the same
// one, so it is never sent anywhere.
//
// The key is an Ed25519 key. Its seed is HKDF-SHA256 (RFC 5869) of the secret, with salt "weft" and
// info "certificate authority of job " and the run id. The certificate has fixed dates and a fixed
// serial number, and Ed25519 signatures are deterministic, so its bytes are the same everywhere.
class JobAuthority {
 public:
  // Internal: OpenSSL cannot make the key.
  static absl::StatusOr<JobAuthority> from_secret(const SecretBytes& secret,
                                                  std::string_view run_id);
  // From a new secret, which nobody knows.
  static absl::StatusOr<JobAuthority> create(std::string_view run_id);
  // A new P-256 key and its certificate, for TLS servers and clients. It is valid for as long as
  // the authority, so clocks that disagree do no harm.
  absl::StatusOr<TlsCredentials> issue(const CertificateName& name) const;
  // Only the certificate, for the key of another process. `public_key` and the result are PEM.
  // InvalidArgument: it is no public key.
  absl::StatusOr<std::string> certify(const CertificateName& name,
                                      std::string_view public_key) const;
  const std::string& certificate() const { return certificate_; }

 private:
  std::shared_ptr<const security_internal::Issuer> issuer_;  // shared by copies
  std::string certificate_;
};

// The URIs in the first certificate of a PEM text, each with all its bytes. Empty: there is no
// certificate, or it has none.
std::vector<std::string> uris_of_certificate(std::string_view pem);

// Checks credentials before their first use, and reads the certificate's name. Errors, each of
// which says what is wrong and when, by this machine's clock:
//
// - InvalidArgument: a text is no PEM certificate or key. The key does not fit the certificate. The
//   certificate has no or several URIs, or its URI is no name of a worker.
//
// - PermissionDenied: no authority has signed the certificate. It has expired, or is not yet valid.
//   It is not for TLS servers and clients.
absl::StatusOr<TlsCredentials> check_credentials(std::string authorities, std::string chain,
                                                 SecretBytes key);

}  // namespace weft
