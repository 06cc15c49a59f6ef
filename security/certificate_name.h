// The name that a worker's certificate proves: trust domain, job, role and worker.
//
// It is the only URI among the certificate's subject alternative names, and has the form
// spiffe://TRUST/weft/RUN/ROLE/NAME. TRUST is "weft.local" for certificates that a job makes
// itself. RUN is the first half of the SHA-256 of the run id in 32 hexadecimal digits, because a
// run id may have any character.
//
// Thread safety: plain values and pure functions.
// Errors: InvalidArgument, which shows the name, unless a function says otherwise.
// Protocol: the SPIFFE ID and X.509-SVID standards: letters, digits, "-", "." and "_" in a path
// segment.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "absl/status/statusor.h"

namespace weft {

struct CertificateName {
  std::string run;   // run_digest()
  std::string role;  // the ROLE_NAME of the launcher; "default" if it gives none
  std::string worker;
  std::string trust_domain = "weft.local";

  std::string uri() const;
  friend bool operator==(const CertificateName&, const CertificateName&) = default;
};

// The name for a worker of a job. An empty `role` becomes "default". Worker names may have ":",
// certificates may not.
absl::StatusOr<CertificateName> certificate_name(std::string_view run_id, std::string_view role,
                                                 std::string_view worker);
absl::StatusOr<CertificateName> parse_certificate_name(std::string_view uri);
// The name in a certificate that has these URIs. There must be exactly one.
absl::StatusOr<CertificateName> only_certificate_name(const std::vector<std::string>& uris);
// The same for a certificate that a peer shows. PermissionDenied: there is no such name, or the
// certificate is of another job or trust domain than `own`.
absl::StatusOr<CertificateName> name_in_job(const CertificateName& own,
                                            const std::vector<std::string>& uris);

// What a worker says that it is.
struct WorkerClaim {
  std::string name;
  std::optional<uint32_t> rank;  // nullopt: workers of its group have no fixed ranks
};
// NAME in the certificate of whichever worker has this rank: "rank.3". weft_launch issues such
// certificates, because it does not know the workers' names.
std::string name_of_rank(uint32_t rank);
bool is_name_of_rank(std::string_view certified_name);
// Whether a certificate with this NAME proves the claim. That of a rank proves the rank, and
// nothing about the worker's name.
bool proves(std::string_view certified_name, const WorkerClaim& claim);

// NAME in the certificate of the store that a launcher hosts for workers with certificates of
// ranks.
inline constexpr std::string_view kLauncherName = "weft_launch";

// Whether it can be a role or a worker in a certificate's name: 1 to 127 letters, digits, '-', '.'
// and '_', but not "." or "..".
bool is_certificate_segment(std::string_view text);

std::string run_digest(std::string_view run_id);

}  // namespace weft
