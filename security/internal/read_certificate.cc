#include "weft/security/internal/read_certificate.h"

#include <ctime>

#include "absl/strings/str_cat.h"
#include "weft/base/status.h"

namespace weft::security_internal {
namespace {

// Without it, an encrypted key would ask for its password at the terminal.
int no_password(char*, int, int, void*) { return -1; }

}  // namespace

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

absl::StatusOr<Key> read_key(const SecretBytes& pem) {
  const Bio bio = reader_of(pem.text());
  Key key(PEM_read_bio_PrivateKey(bio.get(), nullptr, no_password, nullptr));
  ERR_clear_error();
  if (key != nullptr) return key;
  return absl::InvalidArgumentError("the key file holds no private key in PEM without a password");
}

absl::StatusOr<Key> read_public_key(std::string_view pem) {
  const Bio bio = reader_of(pem);
  Key key(PEM_read_bio_PUBKEY(bio.get(), nullptr, no_password, nullptr));
  ERR_clear_error();
  if (key != nullptr) return key;
  return absl::InvalidArgumentError("the text is no public key in PEM");
}

std::string text_of(const ASN1_TIME* time) {
  tm parts = {};
  char text[32] = "an unknown time";
  if (ASN1_TIME_to_tm(time, &parts) == 1)
    strftime(text, sizeof text, "%Y-%m-%d %H:%M:%S UTC", &parts);
  return text;
}

}  // namespace weft::security_internal
