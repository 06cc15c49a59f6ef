#include "weft/security/worker_credentials.h"

#include <string>
#include <utility>
#include <vector>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "weft/base/status.h"
#include "weft/security/internal/key_file.h"
#include "weft/security/job_secret.h"

namespace weft {
namespace {

constexpr size_t kMostPem = size_t{1} << 20;

struct CredentialFiles {
  std::string certificate, key, authorities;  // paths
};

absl::StatusOr<TlsCredentials> read_credentials(const CredentialFiles& files) {
  using security_internal::Access;
  using security_internal::read_file;
  WEFT_ASSIGN_OR_RETURN(const SecretBytes authorities,
                        read_file(files.authorities, kMostPem, Access::kAnybodyReads));
  WEFT_ASSIGN_OR_RETURN(const SecretBytes chain,
                        read_file(files.certificate, kMostPem, Access::kAnybodyReads));
  WEFT_ASSIGN_OR_RETURN(SecretBytes key, read_file(files.key, kMostPem, Access::kPrivate));
  absl::StatusOr<TlsCredentials> checked =
      check_credentials(std::string(authorities.text()), std::string(chain.text()), std::move(key));
  if (checked.ok()) return checked;
  return prepend(absl::StrCat(files.certificate, ", ", files.key, ", ", files.authorities, ": "),
                 checked.status());
}

}  // namespace

absl::StatusOr<TlsCredentials> find_worker_credentials(std::string_view run_id,
                                                       std::string_view role,
                                                       std::string_view worker,
                                                       const EnvironmentReader& read) {
  WEFT_ASSIGN_OR_RETURN(const CertificateName name, certificate_name(run_id, role, worker));
  const char* const variables[] = {"WEFT_TLS_CERT", "WEFT_TLS_KEY", "WEFT_TLS_CA"};
  std::vector<std::string> paths;
  std::vector<std::string> missing;
  for (const char* variable : variables) {
    const std::string path = read(variable).value_or("");
    path.empty() ? missing.emplace_back(variable) : paths.emplace_back(path);
  }
  if (paths.empty()) {
    WEFT_ASSIGN_OR_RETURN(const SecretBytes secret, find_job_secret(read));
    WEFT_ASSIGN_OR_RETURN(const JobAuthority authority, JobAuthority::from_secret(secret, run_id));
    return authority.issue(name);
  }
  if (!missing.empty()) {
    return absl::InvalidArgumentError(
        absl::StrCat("WEFT_TLS_CERT, WEFT_TLS_KEY and WEFT_TLS_CA belong together. Not set: ",
                     absl::StrJoin(missing, ", ")));
  }
  WEFT_ASSIGN_OR_RETURN(TlsCredentials found, read_credentials({paths[0], paths[1], paths[2]}));
  if (found.name.run != name.run || found.name.worker != name.worker) {
    return absl::InvalidArgumentError(absl::StrCat(
        "the certificate in ", paths[0], " names ", found.name.uri(), ", but this worker is '",
        name.worker, "' of the job with run id '", absl_view(run_id), "' (", name.run, ")"));
  }
  return found;
}

}  // namespace weft
