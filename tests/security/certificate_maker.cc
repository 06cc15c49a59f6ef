#include "weft/tests/security/certificate_maker.h"

#include <atomic>
#include <cstdlib>
#include <iostream>

#include "absl/strings/str_cat.h"
#include "weft/security/internal/openssl.h"

namespace weft {
namespace {

namespace ssl = security_internal;

void must(bool good, const char* what) {
  if (good) return;
  std::cerr << "certificate maker: " << ssl::openssl_failed(what) << "\n";
  std::abort();
}

std::string text_of(BIO* bio) {
  char* text = nullptr;
  const long size = BIO_get_mem_data(bio, &text);
  return std::string(text, static_cast<size_t>(size));
}

std::string pem_of(EVP_PKEY* key) {
  const ssl::Bio bio(BIO_new(BIO_s_mem()));
  must(PEM_write_bio_PrivateKey(bio.get(), key, nullptr, nullptr, 0, nullptr, nullptr) == 1,
       "write a key");
  return text_of(bio.get());
}

std::string pem_of(X509* certificate) {
  const ssl::Bio bio(BIO_new(BIO_s_mem()));
  must(PEM_write_bio_X509(bio.get(), certificate) == 1, "write a certificate");
  return text_of(bio.get());
}

void add(X509* certificate, X509* issuer, int kind, const std::string& value) {
  X509V3_CTX context;
  X509V3_set_ctx_nodb(&context);
  X509V3_set_ctx(&context, issuer, certificate, nullptr, nullptr, 0);
  const ssl::Extension extension(X509V3_EXT_conf_nid(nullptr, &context, kind, value.c_str()));
  must(extension != nullptr && X509_add_ext(certificate, extension.get(), -1) == 1,
       "add an extension");
}

// Unlike OpenSSL's texts, this lets a URI have any byte.
void add_uris(X509* certificate, const std::vector<std::string>& uris) {
  if (uris.empty()) return;
  const ssl::Names names(sk_GENERAL_NAME_new_null());
  for (const std::string& uri : uris) {
    GENERAL_NAME* name = GENERAL_NAME_new();
    ASN1_IA5STRING* text = ASN1_IA5STRING_new();
    ASN1_STRING_set(text, uri.data(), static_cast<int>(uri.size()));
    GENERAL_NAME_set0_value(name, GEN_URI, text);
    sk_GENERAL_NAME_push(names.get(), name);
  }
  must(X509_add1_ext_i2d(certificate, NID_subject_alt_name, names.get(), 0, 0) == 1, "add URIs");
}

ssl::Certificate begin(EVP_PKEY* key, X509* issuer, const std::string& name, long begins,
                       long ends) {
  ssl::Certificate one(X509_new());
  X509_set_version(one.get(), 2);
  ASN1_INTEGER_set(X509_get_serialNumber(one.get()), std::rand());
  X509_gmtime_adj(X509_getm_notBefore(one.get()), begins);
  X509_gmtime_adj(X509_getm_notAfter(one.get()), ends);
  X509_NAME* const subject = X509_get_subject_name(one.get());
  X509_NAME_add_entry_by_txt(subject, "CN", MBSTRING_ASC,
                             reinterpret_cast<const unsigned char*>(name.c_str()), -1, -1, 0);
  X509_set_issuer_name(one.get(), issuer == nullptr ? subject : X509_get_subject_name(issuer));
  X509_set_pubkey(one.get(), key);
  return one;
}

// OpenSSL tries only one of several authorities of the same name.
std::string next_name() {
  static std::atomic<int> number{0};
  return absl::StrCat("authority ", number++);
}

}  // namespace

CertificateMaker::CertificateMaker() {
  const ssl::Key key(EVP_EC_gen("P-256"));
  const ssl::Certificate own = begin(key.get(), nullptr, next_name(), -86400, 86400);
  add(own.get(), own.get(), NID_basic_constraints, "critical,CA:TRUE");
  add(own.get(), own.get(), NID_key_usage, "critical,keyCertSign");
  must(X509_sign(own.get(), key.get(), EVP_sha256()) > 0, "sign");
  key_ = pem_of(key.get());
  certificate_ = pem_of(own.get());
}

TlsCredentials CertificateMaker::make(const CertificateRequest& request) const {
  const ssl::Bio key_text = ssl::reader_of(key_);
  const ssl::Bio own_text = ssl::reader_of(certificate_);
  const ssl::Key signer(PEM_read_bio_PrivateKey(key_text.get(), nullptr, nullptr, nullptr));
  const ssl::Certificate issuer(PEM_read_bio_X509(own_text.get(), nullptr, nullptr, nullptr));
  must(signer != nullptr && issuer != nullptr, "read the authority");
  const ssl::Key key(EVP_EC_gen("P-256"));
  const ssl::Certificate one =
      begin(key.get(), issuer.get(), request.common_name, request.begins, request.ends);
  add_uris(one.get(), request.uris);
  add(one.get(), issuer.get(), NID_key_usage, "critical,digitalSignature");
  add(one.get(), issuer.get(), NID_ext_key_usage, request.purposes);
  must(X509_sign(one.get(), signer.get(), EVP_sha256()) > 0, "sign");
  TlsCredentials result;
  result.authorities = certificate_;
  result.chain = pem_of(one.get());
  result.key = SecretBytes(pem_of(key.get()));
  if (const auto name = only_certificate_name(request.uris); name.ok()) result.name = *name;
  return result;
}

TlsCredentials copy_of(const TlsCredentials& credentials) {
  return {credentials.authorities, credentials.chain, SecretBytes(credentials.key.text()),
          credentials.name};
}

}  // namespace weft
