#include "weft/security/worker_identity.h"

#include <functional>
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
  // Says why a certificate with this name cannot be used.
  using Check = std::function<absl::Status(const CertificateName&)>;

  FileReader(CredentialFiles files, Check check)
      : files_(std::move(files)), check_(std::move(check)) {}

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
    if (const absl::Status fits = check_(checked->name); !fits.ok()) {
      return prepend(absl::StrCat("the certificate in ", files_.certificate, " names ",
                                  checked->name.uri(), ", but "),
                     fits);
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
  const Check check_;
  std::string last_;  // the digest of what was read last
};

// nullopt: none of the variables is set.
absl::StatusOr<std::optional<CredentialFiles>> find_files(const EnvironmentReader& read) {
  const char* const variables[] = {"WEFT_TLS_CERT", "WEFT_TLS_KEY", "WEFT_TLS_CA"};
  std::vector<std::string> paths;
  std::vector<std::string> missing;
  bool any = false;
  for (const char* variable : variables) {
    const std::optional<std::string> path = read(variable);
    any |= path.has_value();
    path.value_or("").empty() ? missing.emplace_back(variable) : paths.emplace_back(*path);
  }
  if (!any) return std::nullopt;
  if (!missing.empty()) {
    return absl::InvalidArgumentError(absl::StrCat(
        "WEFT_TLS_CERT, WEFT_TLS_KEY and WEFT_TLS_CA belong together. Not set, or empty: ",
        absl::StrJoin(missing, ", ")));
  }
  return CredentialFiles{paths[0], paths[1], paths[2]};
}

absl::StatusOr<std::shared_ptr<TlsIdentity>> watch(const CredentialFiles& files,
                                                   FileReader::Check check, Nanoseconds every) {
  auto reader = std::make_shared<FileReader>(files, std::move(check));
  WEFT_ASSIGN_OR_RETURN(std::optional<TlsCredentials> found, reader->read());
  return TlsIdentity::watching(
      *std::move(found), [reader] { return reader->read(); }, every);
}

absl::StatusOr<std::shared_ptr<TlsIdentity>> from_secret(std::string_view run_id,
                                                         const CertificateName& name,
                                                         const EnvironmentReader& read) {
  WEFT_ASSIGN_OR_RETURN(const SecretBytes secret, find_job_secret(read));
  WEFT_ASSIGN_OR_RETURN(const JobAuthority authority, JobAuthority::from_secret(secret, run_id));
  WEFT_ASSIGN_OR_RETURN(TlsCredentials issued, authority.issue(name));
  return std::make_shared<TlsIdentity>(std::move(issued));
}

}  // namespace

absl::StatusOr<std::shared_ptr<TlsIdentity>> find_worker_identity(std::string_view run_id,
                                                                  std::string_view role,
                                                                  const WorkerClaim& worker,
                                                                  const EnvironmentReader& read,
                                                                  Nanoseconds every) {
  WEFT_ASSIGN_OR_RETURN(const CertificateName name, certificate_name(run_id, role, worker.name));
  WEFT_ASSIGN_OR_RETURN(const std::optional<CredentialFiles> files, find_files(read));
  const auto check = [name, worker, run = std::string(run_id)](const CertificateName& found) {
    if (found.run == name.run && found.role == name.role && proves(found.worker, worker)) {
      return absl::OkStatus();
    }
    const std::string rank =
        worker.rank.has_value() ? absl::StrCat("rank ", *worker.rank) : "no fixed rank";
    return absl::InvalidArgumentError(
        absl::StrCat("this worker is '", name.worker, "' with ", rank, " and role '", name.role,
                     "' (ROLE_NAME) of the job with run id '", run, "' (", name.run, ")"));
  };
  if (!files.has_value()) {
    WEFT_RETURN_IF_ERROR(prepend("its name is that of a rank, but ", check(name)));
    return from_secret(run_id, name, read);
  }
  return watch(*files, check, every);
}

absl::StatusOr<StoreIdentity> find_store_identity(std::string_view run_id,
                                                  const EnvironmentReader& read,
                                                  Nanoseconds every) {
  constexpr std::string_view kStore = "weft.store";
  WEFT_ASSIGN_OR_RETURN(const std::optional<CredentialFiles> files, find_files(read));
  StoreIdentity result = {.tls = nullptr, .proves_name = files.has_value()};
  if (!files.has_value()) {
    WEFT_ASSIGN_OR_RETURN(const CertificateName name, certificate_name(kStore, "", "process"));
    WEFT_ASSIGN_OR_RETURN(result.tls, from_secret(kStore, name, read));
    return result;
  }
  const auto check = [run = std::string(run_id)](const CertificateName& found) {
    if (run.empty() || found.run == run_digest(run)) return absl::OkStatus();
    return absl::InvalidArgumentError(
        absl::StrCat("this process is of the job with run id '", run, "' (", run_digest(run), ")"));
  };
  WEFT_ASSIGN_OR_RETURN(result.tls, watch(*files, check, every));
  return result;
}

}  // namespace weft
