#include "weft/security/certificate_name.h"

#include <algorithm>
#include <openssl/evp.h>

#include "absl/strings/escaping.h"
#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_split.h"
#include "weft/base/log.h"
#include "weft/base/status.h"

namespace weft {
namespace {

constexpr std::string_view kScheme = "spiffe://";
constexpr size_t kMostUri = 2048;     // SPIFFE ID, section 2.3
constexpr size_t kRunBytes = 16;      // of the digest
constexpr size_t kMostSegment = 127;  // as of a worker's name
constexpr std::string_view kRank = "rank.";

absl::Status no_segment(std::string_view what, std::string_view text) {
  return absl::InvalidArgumentError(
      absl::StrCat("the ", absl_view(what), " '", printable(text),
                   "' cannot stand in a certificate: 1 to 127 letters, digits, '-', '.' and '_'"));
}

}  // namespace

bool is_certificate_segment(std::string_view text) {
  const auto allowed = [](char c) {
    return (c >= 'a' && c <= 'z') || (c >= 'A' && c <= 'Z') || (c >= '0' && c <= '9') || c == '-' ||
           c == '.' || c == '_';
  };
  return !text.empty() && text.size() <= kMostSegment && text != "." && text != ".." &&
         std::all_of(text.begin(), text.end(), allowed);
}

std::string CertificateName::uri() const {
  return absl::StrCat(absl_view(kScheme), trust_domain, "/weft/", run, "/", role, "/", worker);
}

std::string run_digest(std::string_view run_id) {
  unsigned char digest[EVP_MAX_MD_SIZE];
  unsigned size = 0;
  EVP_Digest(run_id.data(), run_id.size(), digest, &size, EVP_sha256(), nullptr);
  return absl::BytesToHexString({reinterpret_cast<const char*>(digest), kRunBytes});
}

absl::StatusOr<CertificateName> certificate_name(std::string_view run_id, std::string_view role,
                                                 std::string_view worker) {
  if (role.empty()) role = "default";
  if (!is_certificate_segment(role)) return no_segment("role", role);
  if (!is_certificate_segment(worker)) return no_segment("worker name", worker);
  return CertificateName{run_digest(run_id), std::string(role), std::string(worker)};
}

std::string name_of_rank(uint32_t rank) { return absl::StrCat(absl_view(kRank), rank); }

bool is_name_of_rank(std::string_view certified_name) {
  if (!certified_name.starts_with(kRank)) return false;
  const std::string_view rank = certified_name.substr(kRank.size());
  return !rank.empty() && rank.find_first_not_of("0123456789") == rank.npos;
}

bool proves(std::string_view certified_name, const WorkerClaim& claim) {
  if (!is_name_of_rank(certified_name)) return certified_name == claim.name;
  return claim.rank.has_value() && certified_name == name_of_rank(*claim.rank);
}

absl::StatusOr<CertificateName> parse_certificate_name(std::string_view uri) {
  const std::vector<std::string> parts =
      uri.size() <= kMostUri && uri.starts_with(kScheme)
          ? absl::StrSplit(absl_view(uri.substr(kScheme.size())), '/')
          : std::vector<std::string>();
  if (parts.size() != 5 || parts[1] != "weft" ||
      !std::all_of(parts.begin(), parts.end(), is_certificate_segment)) {
    return absl::InvalidArgumentError(absl::StrCat("the certificate's name '", printable(uri, 256),
                                                   "' is not spiffe://TRUST/weft/RUN/ROLE/NAME"));
  }
  return CertificateName{parts[2], parts[3], parts[4], parts[0]};
}

absl::StatusOr<CertificateName> only_certificate_name(const std::vector<std::string>& uris) {
  if (uris.size() == 1) return parse_certificate_name(uris.front());
  return absl::InvalidArgumentError(
      absl::StrCat("the certificate has ", uris.size(),
                   " URIs among its subject alternative names, and must have exactly one"));
}

absl::StatusOr<CertificateName> name_in_job(const CertificateName& own,
                                            const std::vector<std::string>& uris) {
  absl::StatusOr<CertificateName> name = only_certificate_name(uris);
  if (!name.ok()) return absl::PermissionDeniedError(name.status().message());
  if (name->trust_domain == own.trust_domain && name->run == own.run) return name;
  return absl::PermissionDeniedError(
      absl::StrCat("the certificate's name '", name->uri(), "' is not of this job: spiffe://",
                   own.trust_domain, "/weft/", own.run, "/ROLE/NAME"));
}

}  // namespace weft
