#include "weft/security/worker_identity.h"

#include <initializer_list>
#include <openssl/evp.h>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "weft/base/status.h"
#include "weft/security/job_secret.h"
#include "weft/security/key_file.h"

namespace weft {
namespace {

constexpr size_t kMostPem = size_t{1} << 20;

struct CredentialFiles {
  std::string certificate, key, authorities;  // paths
};

// Reads the files again and again.
class FileReader {
 public:
  FileReader(CredentialFiles files, CertificateName name, std::string run_id)
      : files_(std::move(files)), name_(std::move(name)), run_id_(std::move(run_id)) {}

  // nullopt: the files have not changed since the last call.
  absl::StatusOr<std::optional<TlsCredentials>> read() {
    using security_internal::read_file;
    using security_internal::Readers;
    WEFT_ASSIGN_OR_RETURN(const SecretBytes authorities,
                          read_file(files_.authorities, kMostPem, Readers::kEverybody));
    WEFT_ASSIGN_OR_RETURN(const SecretBytes chain,
                          read_file(files_.certificate, kMostPem, Readers::kEverybody));
    WEFT_ASSIGN_OR_RETURN(SecretBytes key, read_file(files_.key, kMostPem, Readers::kOwner));
    std::string digest = digest_of({authorities.text(), chain.text(), key.text()});
    if (digest == last_) return std::nullopt;
    absl::StatusOr<TlsCredentials> checked = check_credentials(
        std::string(authorities.text()), std::string(chain.text()), std::move(key));
    if (!checked.ok()) {
      return prepend(
          absl::StrCat(files_.certificate, ", ", files_.key, ", ", files_.authorities, ": "),
          checked.status());
    }
    if (checked->name.run != name_.run || checked->name.worker != name_.worker ||
        checked->name.role != name_.role) {
      return absl::InvalidArgumentError(
          absl::StrCat("the certificate in ", files_.certificate, " names ", checked->name.uri(),
                       ", but this worker is '", name_.worker, "' with role '", name_.role,
                       "' (ROLE_NAME) of the job with run id '", run_id_, "' (", name_.run, ")"));
    }
    last_ = std::move(digest);
    return *std::move(checked);
  }

 private:
  static std::string digest_of(std::initializer_list<std::string_view> texts) {
    std::string all;
    for (const std::string_view text : texts) {
      unsigned char one[EVP_MAX_MD_SIZE];
      unsigned size = 0;
      EVP_Digest(text.data(), text.size(), one, &size, EVP_sha256(), nullptr);
      all.append(reinterpret_cast<const char*>(one), size);
    }
    return all;
  }

  const CredentialFiles files_;
  const CertificateName name_;
  const std::string run_id_;
  std::string last_;  // the digest of what was read last
};

}  // namespace

absl::StatusOr<std::shared_ptr<TlsIdentity>> find_worker_identity(std::string_view run_id,
                                                                  std::string_view role,
                                                                  std::string_view worker,
                                                                  const EnvironmentReader& read,
                                                                  Nanoseconds every) {
  WEFT_ASSIGN_OR_RETURN(const CertificateName name, certificate_name(run_id, role, worker));
  const char* const variables[] = {"WEFT_TLS_CERT", "WEFT_TLS_KEY", "WEFT_TLS_CA"};
  std::vector<std::string> paths;
  std::vector<std::string> missing;
  bool any = false;
  for (const char* variable : variables) {
    const std::optional<std::string> path = read(variable);
    any |= path.has_value();
    path.value_or("").empty() ? missing.emplace_back(variable) : paths.emplace_back(*path);
  }
  if (!any) {
    WEFT_ASSIGN_OR_RETURN(const SecretBytes secret, find_job_secret(read));
    WEFT_ASSIGN_OR_RETURN(const JobAuthority authority, JobAuthority::from_secret(secret, run_id));
    WEFT_ASSIGN_OR_RETURN(TlsCredentials issued, authority.issue(name));
    return std::make_shared<TlsIdentity>(std::move(issued));
  }
  if (!missing.empty()) {
    return absl::InvalidArgumentError(absl::StrCat(
        "WEFT_TLS_CERT, WEFT_TLS_KEY and WEFT_TLS_CA belong together. Not set, or empty: ",
        absl::StrJoin(missing, ", ")));
  }
  auto reader = std::make_shared<FileReader>(CredentialFiles{paths[0], paths[1], paths[2]}, name,
                                             std::string(run_id));
  WEFT_ASSIGN_OR_RETURN(std::optional<TlsCredentials> found, reader->read());
  return TlsIdentity::watching(
      *std::move(found), [reader] { return reader->read(); }, every);
}

}  // namespace weft
