// Mutual TLS of a transport's gRPC connections.
//
// OpenSSL checks at both ends that the certificate leads to the job's authority. Names are checked
// in two places:
//
// - The dialling end checks, before it sends anything, that it has reached the worker that it
//   dials.
//
// - The accepting end checks the hello (rpc/transport/hello.h): the certificate must have the same
//   name. A check during the handshake could not tell the dialler why it is refused: with TLS 1.3
//   the dialler sees only that the socket was closed.
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
#include "weft/base/mutex.h"
#include "weft/security/certificates.h"
#include "weft/security/tls_identity.h"

namespace weft::rpc_internal {

// Why a dialling end has refused the far end's certificate.
class FarEndRefusal {
 public:
  void set(absl::Status why) ABSL_LOCKS_EXCLUDED(mutex_) {
    MutexLock lock(mutex_);
    why_ = std::move(why);
  }
  absl::Status get() const ABSL_LOCKS_EXCLUDED(mutex_) {
    MutexLock lock(mutex_);
    return why_;
  }

 private:
  mutable Mutex mutex_;
  absl::Status why_ ABSL_GUARDED_BY(mutex_);
};

class GrpcTls {
 public:
  // ResourceExhausted: there is no descriptor for credentials that may change.
  static absl::StatusOr<std::unique_ptr<GrpcTls>> create(std::shared_ptr<TlsIdentity> identity);
  ~GrpcTls();

  std::shared_ptr<grpc::ServerCredentials> for_listening() const;
  // `refusal` is set if the far end has a certificate of the job, but not that of `worker`:
  // FailedPrecondition, as if it had answered the hello. PermissionDenied: its certificate is of
  // another job or has no valid name.
  std::shared_ptr<grpc::ChannelCredentials> for_dialling(
      std::string worker, std::shared_ptr<FarEndRefusal> refusal) const;
  // PermissionDenied: a certificate with these URIs does not prove that the far end is this worker.
  absl::Status check_hello(const std::vector<std::string>& uris, const std::string& worker) const;

 private:
  struct Files;

  GrpcTls(std::shared_ptr<TlsIdentity> identity, std::shared_ptr<Files> files);

  const std::shared_ptr<TlsIdentity> identity_;
  const CertificateName own_;
  const std::shared_ptr<Files> files_;  // shared with gRPC; null: the credentials never change
  const std::shared_ptr<grpc::experimental::CertificateProviderInterface> provider_;
};

}  // namespace weft::rpc_internal
