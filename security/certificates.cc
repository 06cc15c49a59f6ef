#include "weft/security/certificates.h"

#include <ctime>
#include <openssl/core_names.h>
#include <openssl/params.h>
#include <openssl/rand.h>
#include <optional>

#include "absl/strings/str_cat.h"
#include "weft/base/status.h"
#include "weft/security/internal/make_certificate.h"
#include "weft/security/internal/openssl.h"
#include "weft/security/internal/read_certificate.h"

namespace weft {
namespace {

using namespace security_internal;  // owners of OpenSSL's objects

constexpr size_t kSeedBytes = 32;    // of an Ed25519 key
constexpr size_t kSecretBytes = 32;  // of a new secret

absl::StatusOr<SecretBytes> derive_seed(const SecretBytes& secret, std::string_view run_id) {
  const Derivation hkdf(EVP_KDF_fetch(nullptr, "HKDF", nullptr));
  const DerivationContext context(hkdf == nullptr ? nullptr : EVP_KDF_CTX_new(hkdf.get()));
  std::string digest = "SHA256";
  std::string salt = "weft";
  std::string info = absl::StrCat("certificate authority of job ", absl_view(run_id));
  SecretBytes key(secret.text());
  OSSL_PARAM parameters[] = {
      OSSL_PARAM_construct_utf8_string(OSSL_KDF_PARAM_DIGEST, digest.data(), 0),
      OSSL_PARAM_construct_octet_string(OSSL_KDF_PARAM_KEY, key.bytes().data(), key.size()),
      OSSL_PARAM_construct_octet_string(OSSL_KDF_PARAM_SALT, salt.data(), salt.size()),
      OSSL_PARAM_construct_octet_string(OSSL_KDF_PARAM_INFO, info.data(), info.size()),
      OSSL_PARAM_construct_end()};
  SecretBytes seed(kSeedBytes);
  if (context == nullptr ||
      EVP_KDF_derive(context.get(), seed.bytes().data(), seed.size(), parameters) <= 0) {
    return openssl_failed("derive the key of the job's certificate authority");
  }
  return seed;
}

std::string now_text() {
  const time_t now = time(nullptr);
  tm parts = {};
  char text[32];
  strftime(text, sizeof text, "%Y-%m-%d %H:%M:%S UTC", gmtime_r(&now, &parts));
  return text;
}

// As gRPC and OpenSSL check it in a handshake: an authority need not be its own issuer.
absl::Status check_chain(const std::vector<Certificate>& authorities,
                         const std::vector<Certificate>& chain, int purpose) {
  const Store store(X509_STORE_new());
  const std::unique_ptr<STACK_OF(X509), Free<[](STACK_OF(X509) * all) { sk_X509_free(all); }>>
      between(sk_X509_new_null());
  const StoreContext context(X509_STORE_CTX_new());
  for (const Certificate& one : authorities) X509_STORE_add_cert(store.get(), one.get());
  for (size_t i = 1; i < chain.size(); ++i) sk_X509_push(between.get(), chain[i].get());
  X509_STORE_set_flags(store.get(), X509_V_FLAG_PARTIAL_CHAIN);
  if (X509_STORE_CTX_init(context.get(), store.get(), chain.front().get(), between.get()) != 1 ||
      X509_STORE_CTX_set_purpose(context.get(), purpose) != 1) {
    return openssl_failed("check a certificate");
  }
  if (X509_verify_cert(context.get()) == 1) return absl::OkStatus();
  const int error = X509_STORE_CTX_get_error(context.get());
  const X509* const bad = X509_STORE_CTX_get_current_cert(context.get());
  ERR_clear_error();
  std::string why;
  if (error == X509_V_ERR_CERT_NOT_YET_VALID) {
    why = absl::StrCat(": it begins at ", text_of(X509_get0_notBefore(bad)),
                       ", and this machine's clock says ", now_text(), ". Compare the clocks");
  } else if (error == X509_V_ERR_CERT_HAS_EXPIRED) {
    why = absl::StrCat(": it ended at ", text_of(X509_get0_notAfter(bad)),
                       ", and this machine's clock says ", now_text());
  } else if (error == X509_V_ERR_INVALID_PURPOSE) {
    why = ": it must be for TLS servers and for TLS clients";
  }
  const int depth = X509_STORE_CTX_get_error_depth(context.get());
  return absl::PermissionDeniedError(
      absl::StrCat(depth == 0 ? "the certificate" : "an issuer of the certificate",
                   " is refused: ", X509_verify_cert_error_string(error), why));
}

}  // namespace

absl::StatusOr<JobAuthority> JobAuthority::from_secret(const SecretBytes& secret,
                                                       std::string_view run_id) {
  WEFT_ASSIGN_OR_RETURN(const SecretBytes seed, derive_seed(secret, run_id));
  security_internal::Key key(
      EVP_PKEY_new_raw_private_key(EVP_PKEY_ED25519, nullptr, seed.bytes().data(), seed.size()));
  if (key == nullptr) return openssl_failed("make an Ed25519 key");
  WEFT_ASSIGN_OR_RETURN(Issuer issuer, sign_authority(std::move(key), Validity()));
  JobAuthority result;
  WEFT_ASSIGN_OR_RETURN(result.certificate_, pem_of(issuer.certificate.get()));
  result.issuer_ = std::make_shared<const Issuer>(std::move(issuer));
  return result;
}

absl::StatusOr<JobAuthority> JobAuthority::create(std::string_view run_id) {
  SecretBytes secret(kSecretBytes);
  if (RAND_bytes(secret.bytes().data(), kSecretBytes) != 1) {
    return openssl_failed("make a random secret");
  }
  return from_secret(secret, run_id);
}

absl::StatusOr<KeyPair> make_key_pair() {
  WEFT_ASSIGN_OR_RETURN(const security_internal::Key key, make_key());
  KeyPair result;
  WEFT_ASSIGN_OR_RETURN(result.key, pem_of(key.get()));
  WEFT_ASSIGN_OR_RETURN(result.public_key, public_pem_of(key.get()));
  return result;
}

absl::StatusOr<TlsCredentials> JobAuthority::issue(const CertificateName& name) const {
  WEFT_ASSIGN_OR_RETURN(KeyPair made, make_key_pair());
  TlsCredentials result;
  WEFT_ASSIGN_OR_RETURN(result.chain, certify(name, made.public_key));
  result.authorities = certificate_;
  result.key = std::move(made.key);
  result.name = name;
  return result;
}

absl::StatusOr<std::string> JobAuthority::certify(const CertificateName& name,
                                                  std::string_view public_key) const {
  WEFT_ASSIGN_OR_RETURN(const security_internal::Key key, read_public_key(public_key));
  WEFT_ASSIGN_OR_RETURN(const Certificate made, sign_worker(name, key.get(), *issuer_, Validity()));
  return pem_of(made.get());
}

std::vector<std::string> uris_of_certificate(std::string_view pem) {
  const absl::StatusOr<std::vector<Certificate>> found = read_certificates(pem, "the text");
  return found.ok() ? uris_of(found->front().get()) : std::vector<std::string>();
}

absl::StatusOr<TlsCredentials> check_credentials(std::string authorities, std::string chain,
                                                 SecretBytes key) {
  WEFT_ASSIGN_OR_RETURN(const std::vector<Certificate> trusted,
                        read_certificates(authorities, "the file of authorities"));
  WEFT_ASSIGN_OR_RETURN(const std::vector<Certificate> own,
                        read_certificates(chain, "the file of the certificate"));
  WEFT_ASSIGN_OR_RETURN(const security_internal::Key secret, read_key(key));
  if (X509_check_private_key(own.front().get(), secret.get()) != 1) {
    ERR_clear_error();
    return absl::InvalidArgumentError("the key does not belong to the certificate");
  }
  WEFT_RETURN_IF_ERROR(check_chain(trusted, own, X509_PURPOSE_SSL_SERVER));
  WEFT_RETURN_IF_ERROR(check_chain(trusted, own, X509_PURPOSE_SSL_CLIENT));
  TlsCredentials result;
  WEFT_ASSIGN_OR_RETURN(result.name, only_certificate_name(uris_of(own.front().get())));
  result.authorities = std::move(authorities);
  result.chain = std::move(chain);
  result.key = std::move(key);
  return result;
}

}  // namespace weft
