#include "weft/security/internal/make_certificate.h"

#include <memory>
#include <openssl/ec.h>
#include <openssl/rand.h>
#include <utility>

#include "absl/strings/str_cat.h"
#include "weft/base/status.h"

namespace weft::security_internal {
namespace {

constexpr int kSerialBytes = 16;
constexpr long kVersion3 = 2;
constexpr char kNotBefore[] = "20200101000000Z";
constexpr char kNotAfter[] = "99991231235959Z";  // RFC 5280: no expiry is meant
constexpr char kCommonName[] = "weft";
constexpr long kClocksDiffer = 3600;  // s

bool add_extension(X509* certificate, X509* issuer, int kind, const std::string& value) {
  X509V3_CTX context;
  X509V3_set_ctx_nodb(&context);
  X509V3_set_ctx(&context, issuer, certificate, nullptr, nullptr, 0);
  const Extension extension(X509V3_EXT_conf_nid(nullptr, &context, kind, value.c_str()));
  return extension != nullptr && X509_add_ext(certificate, extension.get(), -1) == 1;
}

bool set_validity(X509* one, const Validity& validity) {
  ASN1_TIME* const begins = X509_getm_notBefore(one);
  ASN1_TIME* const ends = X509_getm_notAfter(one);
  if (!validity.lasts.has_value()) {
    return ASN1_TIME_set_string(begins, kNotBefore) == 1 &&
           ASN1_TIME_set_string(ends, kNotAfter) == 1;
  }
  const auto days = std::chrono::duration_cast<std::chrono::days>(*validity.lasts);
  const std::chrono::seconds rest = *validity.lasts - days;
  return X509_gmtime_adj(begins, -kClocksDiffer) != nullptr &&
         X509_time_adj_ex(ends, static_cast<int>(days.count()), static_cast<long>(rest.count()),
                          nullptr) != nullptr;
}

// Everything but the extensions and the signature.
Certificate begin_certificate(EVP_PKEY* key, X509_NAME* issuer, const Validity& validity) {
  Certificate result(X509_new());
  if (result == nullptr) return nullptr;
  X509* const one = result.get();
  X509_NAME* const subject = X509_get_subject_name(one);
  const bool good = X509_set_version(one, kVersion3) == 1 && set_validity(one, validity) &&
                    X509_NAME_add_entry_by_txt(
                        subject, issuer == nullptr ? "O" : "CN", MBSTRING_ASC,
                        reinterpret_cast<const unsigned char*>(kCommonName), -1, -1, 0) == 1 &&
                    X509_set_issuer_name(one, issuer == nullptr ? subject : issuer) == 1 &&
                    X509_set_pubkey(one, key) == 1;
  return good ? std::move(result) : nullptr;
}

bool set_random_serial(X509* certificate) {
  unsigned char bytes[kSerialBytes];
  if (RAND_bytes(bytes, sizeof bytes) != 1) return false;
  bytes[0] &= 0x7f;  // serial numbers are positive
  const std::unique_ptr<BIGNUM, Free<BN_free>> number(BN_bin2bn(bytes, sizeof bytes, nullptr));
  return number != nullptr &&
         BN_to_ASN1_INTEGER(number.get(), X509_get_serialNumber(certificate)) != nullptr;
}

std::string text_in(BIO* bio) {
  char* text = nullptr;
  const long size = BIO_get_mem_data(bio, &text);
  return std::string(text, static_cast<size_t>(size));
}

// Ed25519 has a digest of its own.
const EVP_MD* digest_for(EVP_PKEY* key) {
  return EVP_PKEY_get_base_id(key) == EVP_PKEY_ED25519 ? nullptr : EVP_sha256();
}

}  // namespace

absl::StatusOr<Key> make_key() {
  Key key(EVP_EC_gen("P-256"));
  if (key == nullptr) return openssl_failed("make a key");
  return key;
}

absl::StatusOr<std::string> pem_of(X509* certificate) {
  const Bio bio(BIO_new(BIO_s_mem()));
  if (bio == nullptr || PEM_write_bio_X509(bio.get(), certificate) != 1) {
    return openssl_failed("write a certificate");
  }
  return text_in(bio.get());
}

absl::StatusOr<std::string> public_pem_of(EVP_PKEY* key) {
  const Bio bio(BIO_new(BIO_s_mem()));
  if (bio == nullptr || PEM_write_bio_PUBKEY(bio.get(), key) != 1) {
    return openssl_failed("write a public key");
  }
  return text_in(bio.get());
}

absl::StatusOr<SecretBytes> pem_of(EVP_PKEY* key) {
  const Bio bio(BIO_new(BIO_s_secmem()));
  char* text = nullptr;
  if (bio == nullptr ||
      PEM_write_bio_PrivateKey(bio.get(), key, nullptr, nullptr, 0, nullptr, nullptr) != 1) {
    return openssl_failed("write a key");
  }
  const long size = BIO_get_mem_data(bio.get(), &text);
  return SecretBytes(std::string_view(text, static_cast<size_t>(size)));
}

absl::StatusOr<Issuer> sign_authority(Key key, const Validity& validity) {
  Certificate made = begin_certificate(key.get(), nullptr, validity);
  X509* const one = made.get();
  if (one == nullptr || ASN1_INTEGER_set(X509_get_serialNumber(one), 1) != 1 ||
      !add_extension(one, one, NID_basic_constraints, "critical,CA:TRUE,pathlen:0") ||
      !add_extension(one, one, NID_key_usage, "critical,keyCertSign") ||
      !add_extension(one, one, NID_subject_key_identifier, "hash") ||
      X509_sign(one, key.get(), digest_for(key.get())) <= 0) {
    return openssl_failed("make a certificate authority");
  }
  return Issuer{std::move(key), std::move(made)};
}

absl::StatusOr<Certificate> sign_worker(const CertificateName& name, EVP_PKEY* key,
                                        const Issuer& issuer, const Validity& validity) {
  X509* const signer = issuer.certificate.get();
  Certificate made = begin_certificate(key, X509_get_subject_name(signer), validity);
  X509* const one = made.get();
  if (one == nullptr || !set_random_serial(one) ||
      !add_extension(one, signer, NID_subject_alt_name, absl::StrCat("URI:", name.uri())) ||
      !add_extension(one, signer, NID_basic_constraints, "critical,CA:FALSE") ||
      !add_extension(one, signer, NID_key_usage, "critical,digitalSignature") ||
      !add_extension(one, signer, NID_ext_key_usage, "serverAuth,clientAuth") ||
      !add_extension(one, signer, NID_authority_key_identifier, "keyid:always") ||
      X509_sign(one, issuer.key.get(), digest_for(issuer.key.get())) <= 0) {
    return openssl_failed("make a certificate");
  }
  return made;
}

}  // namespace weft::security_internal
