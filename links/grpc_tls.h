// Mutual TLS of gRPC connections.
//
// OpenSSL checks at both ends that the certificate leads to the job's authority. Names are checked
// in two places:
//
// - The dialling end checks, before it sends anything, that it has reached the worker that it
//   dials, or a member of the job.
//
// - The accepting end asks `name_of` with the first call. A check during the handshake could not
//   tell the dialler why it is refused: with TLS 1.3 the dialler sees only that the socket was
//   closed.
//
// If the identity changes, new connections use the new credentials after at most 2 s. gRPC 1.51
// takes new ones only from files. If it finds a key beside the certificate of another, it accepts
// nobody. So it reads files in memory that have both, and that are replaced as a whole.
//
// Thread safety: all methods may be called from any thread.
// Lifetime: gRPC's credentials may outlive this object. Then they change no more.
// Protocol: TLS 1.2 or 1.3, as gRPC 1.51 sets it; names: security/certificate_name.h.
#pragma once

#include <memory>
#include <optional>
#include <string>
#include <vector>

#include <grpcpp/security/credentials.h>
#include <grpcpp/security/server_credentials.h>
#include <grpcpp/security/tls_certificate_provider.h>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "weft/base/mutex.h"
#include "weft/security/certificate_name.h"
#include "weft/security/certificates.h"
#include "weft/security/tls_identity.h"

namespace weft {

// Keeps what a dialling end has seen of the far end's certificate.
class FarEnd {
 public:
  void refuse(absl::Status why) ABSL_LOCKS_EXCLUDED(mutex_) {
    MutexLock lock(mutex_);
    refusal_ = std::move(why);
  }
  void accept(std::string role) ABSL_LOCKS_EXCLUDED(mutex_) {
    MutexLock lock(mutex_);
    role_ = std::move(role);
  }
  // Why the certificate was refused. OK: it was not.
  absl::Status refusal() const ABSL_LOCKS_EXCLUDED(mutex_) {
    MutexLock lock(mutex_);
    return refusal_;
  }
  // The role in the certificate. Nullopt: none was accepted.
  std::optional<std::string> role() const ABSL_LOCKS_EXCLUDED(mutex_) {
    MutexLock lock(mutex_);
    return role_;
  }

 private:
  mutable Mutex mutex_;
  absl::Status refusal_ ABSL_GUARDED_BY(mutex_);
  std::optional<std::string> role_ ABSL_GUARDED_BY(mutex_);
};

class GrpcTls {
 public:
  // ResourceExhausted: there is no descriptor for credentials that may change.
  static absl::StatusOr<std::unique_ptr<GrpcTls>> create(std::shared_ptr<TlsIdentity> identity);
  ~GrpcTls();

  std::shared_ptr<grpc::ServerCredentials> for_listening() const;
  // `far_end` learns of the certificate that the far end shows. It refuses one of the job that is
  // not of `worker`: FailedPrecondition, as if the far end had said its name. nullopt: any worker
  // of the job will do. PermissionDenied: the certificate is of another job or has no valid name.
  std::shared_ptr<grpc::ChannelCredentials> for_dialling(std::optional<WorkerClaim> worker,
                                                         std::shared_ptr<FarEnd> far_end) const;
  // The name in a certificate that has these URIs.
  // PermissionDenied: it is of another job or has no valid name.
  absl::StatusOr<CertificateName> name_of(const std::vector<std::string>& uris) const {
    return name_in_job(own_, uris);
  }

 private:
  struct Files;

  GrpcTls(std::shared_ptr<TlsIdentity> identity, std::shared_ptr<Files> files);

  const std::shared_ptr<TlsIdentity> identity_;
  const CertificateName own_;
  const std::shared_ptr<Files> files_;  // shared with gRPC; null: the credentials never change
  const std::shared_ptr<grpc::experimental::CertificateProviderInterface> provider_;
};

}  // namespace weft
