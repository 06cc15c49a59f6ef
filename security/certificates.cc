#include "weft/security/certificates.h"

#include <ctime>
#include <openssl/core_names.h>
#include <openssl/ec.h>
#include <openssl/params.h>
#include <openssl/rand.h>
#include <optional>

#include "absl/strings/str_cat.h"
#include "weft/base/status.h"
#include "weft/security/internal/openssl.h"

namespace weft {
namespace {

using namespace security_internal;  // owners of OpenSSL's objects

constexpr size_t kSeedBytes = 32;  // of an Ed25519 key
constexpr int kSerialBytes = 16;
constexpr long kVersion3 = 2;
constexpr char kNotBefore[] = "20200101000000Z";
constexpr char kNotAfter[] = "99991231235959Z";  // RFC 5280: no expiry is meant
constexpr char kCommonName[] = "weft";

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

absl::StatusOr<std::string> pem_of(X509* certificate) {
  const Bio bio(BIO_new(BIO_s_mem()));
  char* text = nullptr;
  if (bio == nullptr || PEM_write_bio_X509(bio.get(), certificate) != 1) {
    return openssl_failed("write a certificate");
  }
  const long size = BIO_get_mem_data(bio.get(), &text);
  return std::string(text, static_cast<size_t>(size));
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

bool add_extension(X509* certificate, X509* issuer, int kind, const std::string& value) {
  X509V3_CTX context;
  X509V3_set_ctx_nodb(&context);
  X509V3_set_ctx(&context, issuer, certificate, nullptr, nullptr, 0);
  const Extension extension(X509V3_EXT_conf_nid(nullptr, &context, kind, value.c_str()));
  return extension != nullptr && X509_add_ext(certificate, extension.get(), -1) == 1;
}

// Everything but the extensions and the signature.
Certificate begin_certificate(EVP_PKEY* key, X509_NAME* issuer) {
  Certificate result(X509_new());
  if (result == nullptr) return nullptr;
  X509* const one = result.get();
  X509_NAME* const subject = X509_get_subject_name(one);
  const bool good = X509_set_version(one, kVersion3) == 1 &&
                    ASN1_TIME_set_string(X509_getm_notBefore(one), kNotBefore) == 1 &&
                    ASN1_TIME_set_string(X509_getm_notAfter(one), kNotAfter) == 1 &&
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

absl::StatusOr<Certificate> sign_authority(EVP_PKEY* key) {
  Certificate made = begin_certificate(key, nullptr);
  X509* const one = made.get();
  if (one == nullptr || ASN1_INTEGER_set(X509_get_serialNumber(one), 1) != 1 ||
      !add_extension(one, one, NID_basic_constraints, "critical,CA:TRUE,pathlen:0") ||
      !add_extension(one, one, NID_key_usage, "critical,keyCertSign") ||
      !add_extension(one, one, NID_subject_key_identifier, "hash") ||
      X509_sign(one, key, nullptr) <= 0) {
    return openssl_failed("make the job's certificate authority");
  }
  return made;
}

std::vector<std::string> uris_of(X509* certificate) {
  std::vector<std::string> result;
  const Names names(static_cast<GENERAL_NAMES*>(
      X509_get_ext_d2i(certificate, NID_subject_alt_name, nullptr, nullptr)));
  for (int i = 0; names != nullptr && i < sk_GENERAL_NAME_num(names.get()); ++i) {
    const GENERAL_NAME* name = sk_GENERAL_NAME_value(names.get(), i);
    if (name->type != GEN_URI) continue;
    const ASN1_IA5STRING* uri = name->d.uniformResourceIdentifier;
    result.emplace_back(reinterpret_cast<const char*>(ASN1_STRING_get0_data(uri)),
                        static_cast<size_t>(ASN1_STRING_length(uri)));
  }
  return result;
}

absl::StatusOr<std::vector<Certificate>> read_certificates(std::string_view text,
                                                           std::string_view what) {
  std::vector<Certificate> result;
  const Bio bio = reader_of(text);
  while (X509* one = PEM_read_bio_X509(bio.get(), nullptr, nullptr, nullptr)) {
    result.emplace_back(one);
  }
  const bool ended = ERR_GET_REASON(ERR_peek_last_error()) == PEM_R_NO_START_LINE;
  ERR_clear_error();
  if (!result.empty() && ended) return result;
  return absl::InvalidArgumentError(absl::StrCat(
      absl_view(what), result.empty() ? " holds no certificate" : " holds a broken certificate",
      " (PEM: -----BEGIN CERTIFICATE-----)"));
}

std::string text_of(const ASN1_TIME* time) {
  tm parts = {};
  char text[32] = "an unknown time";
  if (ASN1_TIME_to_tm(time, &parts) == 1)
    strftime(text, sizeof text, "%Y-%m-%d %H:%M:%S UTC", &parts);
  return text;
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

struct JobAuthority::Key {
  security_internal::Key key;
  Certificate certificate;
};

absl::StatusOr<JobAuthority> JobAuthority::from_secret(const SecretBytes& secret,
                                                       std::string_view run_id) {
  WEFT_ASSIGN_OR_RETURN(const SecretBytes seed, derive_seed(secret, run_id));
  auto key = std::make_shared<Key>();
  key->key.reset(
      EVP_PKEY_new_raw_private_key(EVP_PKEY_ED25519, nullptr, seed.bytes().data(), seed.size()));
  if (key->key == nullptr) return openssl_failed("make an Ed25519 key");
  WEFT_ASSIGN_OR_RETURN(key->certificate, sign_authority(key->key.get()));
  JobAuthority result;
  WEFT_ASSIGN_OR_RETURN(result.certificate_, pem_of(key->certificate.get()));
  result.key_ = std::move(key);
  return result;
}

absl::StatusOr<TlsCredentials> JobAuthority::issue(const CertificateName& name) const {
  const security_internal::Key key(EVP_EC_gen("P-256"));
  X509* const issuer = key_->certificate.get();
  const Certificate made =
      key == nullptr ? nullptr : begin_certificate(key.get(), X509_get_subject_name(issuer));
  X509* const one = made.get();
  if (one == nullptr || !set_random_serial(one) ||
      !add_extension(one, issuer, NID_subject_alt_name, absl::StrCat("URI:", name.uri())) ||
      !add_extension(one, issuer, NID_basic_constraints, "critical,CA:FALSE") ||
      !add_extension(one, issuer, NID_key_usage, "critical,digitalSignature") ||
      !add_extension(one, issuer, NID_ext_key_usage, "serverAuth,clientAuth") ||
      !add_extension(one, issuer, NID_authority_key_identifier, "keyid:always") ||
      X509_sign(one, key_->key.get(), nullptr) <= 0) {
    return openssl_failed("make a certificate");
  }
  TlsCredentials result;
  result.authorities = certificate_;
  result.name = name;
  WEFT_ASSIGN_OR_RETURN(result.chain, pem_of(one));
  WEFT_ASSIGN_OR_RETURN(result.key, pem_of(key.get()));
  return result;
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
  const Bio bio = reader_of(key.text());
  // An encrypted key would ask for its password at the terminal.
  const auto no_password = [](char*, int, int, void*) { return -1; };
  const security_internal::Key secret(
      PEM_read_bio_PrivateKey(bio.get(), nullptr, no_password, nullptr));
  ERR_clear_error();
  if (secret == nullptr) {
    return absl::InvalidArgumentError(
        "the key file holds no private key in PEM without a password");
  }
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
