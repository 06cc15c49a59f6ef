#include "weft/security/site_authority.h"

#include <utility>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "weft/base/status.h"
#include "weft/security/internal/make_certificate.h"
#include "weft/security/internal/read_certificate.h"

namespace weft {

using namespace security_internal;  // NOLINT: owners of OpenSSL's objects

absl::StatusOr<SiteAuthority> SiteAuthority::create(std::chrono::hours lasts) {
  WEFT_ASSIGN_OR_RETURN(security_internal::Key key, make_key());
  WEFT_ASSIGN_OR_RETURN(Issuer issuer, sign_authority(std::move(key), Validity{lasts}));
  WEFT_ASSIGN_OR_RETURN(std::string certificate, pem_of(issuer.certificate.get()));
  return SiteAuthority(std::make_shared<const Issuer>(std::move(issuer)), std::move(certificate));
}

absl::StatusOr<SiteAuthority> SiteAuthority::from_pem(std::string_view certificate,
                                                      const SecretBytes& key) {
  WEFT_ASSIGN_OR_RETURN(std::vector<Certificate> read,
                        read_certificates(certificate, "the authority's file"));
  WEFT_ASSIGN_OR_RETURN(security_internal::Key secret, read_key(key));
  Certificate& own = read.front();
  if (X509_check_ca(own.get()) == 0) {
    return absl::InvalidArgumentError("the certificate is none of an authority");
  }
  if (X509_check_private_key(own.get(), secret.get()) != 1) {
    ERR_clear_error();
    return absl::InvalidArgumentError("the key does not belong to the authority's certificate");
  }
  return SiteAuthority(std::make_shared<const Issuer>(Issuer{std::move(secret), std::move(own)}),
                       std::string(certificate));
}

absl::StatusOr<TlsCredentials> SiteAuthority::issue(const CertificateName& name,
                                                    std::chrono::hours lasts) const {
  WEFT_ASSIGN_OR_RETURN(const security_internal::Key key, make_key());
  WEFT_ASSIGN_OR_RETURN(const Certificate made,
                        sign_worker(name, key.get(), *issuer_, Validity{lasts}));
  const ASN1_TIME* const end = X509_get0_notAfter(issuer_->certificate.get());
  if (ASN1_TIME_compare(X509_get0_notAfter(made.get()), end) > 0) {
    return absl::InvalidArgumentError(
        absl::StrCat("the certificate would outlive its authority, which ends at ", text_of(end)));
  }
  WEFT_ASSIGN_OR_RETURN(std::string chain, pem_of(made.get()));
  WEFT_ASSIGN_OR_RETURN(SecretBytes text, pem_of(key.get()));
  return check_credentials(certificate_, std::move(chain), std::move(text));
}

absl::StatusOr<SecretBytes> SiteAuthority::key() const { return pem_of(issuer_->key.get()); }

absl::StatusOr<std::vector<CertificateFacts>> facts_of_certificates(std::string_view pem,
                                                                    std::string_view what) {
  WEFT_ASSIGN_OR_RETURN(const std::vector<Certificate> read, read_certificates(pem, what));
  std::vector<CertificateFacts> facts;
  for (const Certificate& one : read) {
    facts.push_back({absl::StrJoin(uris_of(one.get()), " "),
                     text_of(X509_get0_notBefore(one.get())),
                     text_of(X509_get0_notAfter(one.get()))});
  }
  return facts;
}

}  // namespace weft
