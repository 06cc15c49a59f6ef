// The certificate authority of a site, which gives each worker an identity that no other worker can
// claim. weft_cert keeps one in two files.
//
// Thread safety: const methods may be called from any thread.
// Blocking: making a key or a certificate takes about 1 ms of one processor.
#pragma once

#include <chrono>
#include <memory>
#include <string>
#include <string_view>
#include <vector>

#include "absl/status/statusor.h"
#include "weft/security/certificates.h"

namespace weft {

class SiteAuthority {
 public:
  // A new P-256 key and its certificate, which is valid for so long.
  static absl::StatusOr<SiteAuthority> create(std::chrono::hours lasts);
  // InvalidArgument: a text is not PEM, the certificate is none of an authority, or the key does
  // not fit it.
  static absl::StatusOr<SiteAuthority> from_pem(std::string_view certificate,
                                                const SecretBytes& key);

  // A new P-256 key and a certificate for TLS servers and clients, valid from an hour ago and for
  // so long. InvalidArgument: it would outlive the authority; the text says when that one ends.
  absl::StatusOr<TlsCredentials> issue(const CertificateName& name, std::chrono::hours lasts) const;

  const std::string& certificate() const { return certificate_; }  // PEM
  absl::StatusOr<SecretBytes> key() const;                         // PEM, without a password

 private:
  explicit SiteAuthority(std::shared_ptr<const security_internal::Issuer> issuer,
                         std::string certificate)
      : issuer_(std::move(issuer)), certificate_(std::move(certificate)) {}

  std::shared_ptr<const security_internal::Issuer> issuer_;  // shared by copies
  std::string certificate_;
};

// One certificate of a PEM text, for people.
struct CertificateFacts {
  std::string names;   // its URIs, joined by a blank; "" for an authority
  std::string begins;  // "2026-11-29 10:00:00 UTC"
  std::string ends;
};
// InvalidArgument: the text, which `what` names, holds no certificate.
absl::StatusOr<std::vector<CertificateFacts>> facts_of_certificates(std::string_view pem,
                                                                    std::string_view what);

}  // namespace weft
