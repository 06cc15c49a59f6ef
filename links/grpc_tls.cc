#include "weft/links/grpc_tls.h"

#include <functional>
#include <utility>

#include <grpcpp/security/tls_certificate_verifier.h>
#include <grpcpp/security/tls_credentials_options.h>

#include "absl/strings/str_cat.h"
#include "weft/base/log.h"
#include "weft/base/status.h"
#include "weft/links/memory_file.h"

namespace weft {
namespace {

using grpc::experimental::ExternalCertificateVerifier;
using grpc::experimental::StaticDataCertificateProvider;
using grpc::experimental::TlsCustomVerificationCheckRequest;

constexpr unsigned kLookEverySeconds = 1;

// Checks the far end of one dial. gRPC calls it after OpenSSL has accepted the certificate.
class FarEndVerifier final : public ExternalCertificateVerifier {
 public:
  FarEndVerifier(CertificateName own, std::optional<WorkerClaim> worker,
                 std::shared_ptr<FarEnd> far_end, std::shared_ptr<void> files)
      : own_(std::move(own)),
        worker_(std::move(worker)),
        far_end_(std::move(far_end)),
        files_(std::move(files)) {}

  bool Verify(TlsCustomVerificationCheckRequest* request, std::function<void(grpc::Status)>,
              grpc::Status* result) override {
    // Not uri_names(): it ends at a byte 0, which a certificate may have in the midst of a URI.
    const grpc::string_ref pem = request->peer_cert();
    const absl::StatusOr<CertificateName> name =
        name_in_job(own_, uris_of_certificate({pem.data(), pem.size()}));
    absl::Status refused = name.status();
    if (name.ok() && worker_.has_value() && !proves(name->worker, *worker_)) {
      refused = absl::FailedPreconditionError(
          absl::StrCat("the certificate of worker '", name->worker, "' answers there"));
    }
    if (!refused.ok()) {
      *result = grpc::Status(grpc::StatusCode::UNAUTHENTICATED, std::string(refused.message()));
      far_end_->refuse(std::move(refused));
    } else {
      far_end_->accept(name->role);
    }
    return true;  // it is done
  }
  void Cancel(TlsCustomVerificationCheckRequest*) override {}

 private:
  const CertificateName own_;
  const std::optional<WorkerClaim> worker_;
  const std::shared_ptr<FarEnd> far_end_;
  const std::shared_ptr<void> files_;  // gRPC reads them as long as it has this
};

// At the accepting end, names are checked with the hello.
class LaterVerifier final : public ExternalCertificateVerifier {
 public:
  explicit LaterVerifier(std::shared_ptr<void> files) : files_(std::move(files)) {}
  bool Verify(TlsCustomVerificationCheckRequest*, std::function<void(grpc::Status)>,
              grpc::Status*) override {
    return true;
  }
  void Cancel(TlsCustomVerificationCheckRequest*) override {}

 private:
  const std::shared_ptr<void> files_;  // as above
};

// Without paths, the credentials never change.
std::shared_ptr<grpc::experimental::CertificateProviderInterface> make_provider(
    const TlsCredentials& now, const std::string& identity, const std::string& authorities) {
  if (!identity.empty()) {
    return std::make_shared<grpc::experimental::FileWatcherCertificateProvider>(
        identity, identity, authorities, kLookEverySeconds);
  }
  return std::make_shared<StaticDataCertificateProvider>(
      now.authorities, std::vector<grpc::experimental::IdentityKeyCertPair>{
                           {std::string(now.key.text()), now.chain}});
}

}  // namespace

// The key and its certificates in one file, and the authorities in another.
struct GrpcTls::Files {
  MemoryFile identity, authorities;

  static std::string identity_text(const TlsCredentials& credentials) {
    return absl::StrCat(absl_view(credentials.key.text()), "\n", credentials.chain);
  }
  absl::Status replace(const TlsCredentials& now) {
    WEFT_RETURN_IF_ERROR(authorities.prepare(now.authorities));
    WEFT_RETURN_IF_ERROR(identity.prepare(identity_text(now)));
    WEFT_RETURN_IF_ERROR(authorities.replace());
    return identity.replace();
  }
};

absl::StatusOr<std::unique_ptr<GrpcTls>> GrpcTls::create(std::shared_ptr<TlsIdentity> identity) {
  std::shared_ptr<Files> files;
  if (identity->may_change()) {
    files = std::make_shared<Files>();
    WEFT_RETURN_IF_ERROR(files->replace(*identity->current()));
  }
  std::unique_ptr<GrpcTls> made(new GrpcTls(std::move(identity), std::move(files)));
  return made;
}

GrpcTls::GrpcTls(std::shared_ptr<TlsIdentity> identity, std::shared_ptr<Files> files)
    : identity_(std::move(identity)),
      own_(identity_->current()->name),
      files_(std::move(files)),
      provider_(make_provider(*identity_->current(),
                              files_ == nullptr ? "" : files_->identity.path(),
                              files_ == nullptr ? "" : files_->authorities.path())) {
  if (files_ == nullptr) return;
  identity_->on_change([files = files_](const TlsCredentials& now) { return files->replace(now); });
}

GrpcTls::~GrpcTls() {
  if (files_ != nullptr) identity_->on_change(nullptr);
}

std::shared_ptr<grpc::ServerCredentials> GrpcTls::for_listening() const {
  grpc::experimental::TlsServerCredentialsOptions options(provider_);
  options.watch_root_certs();
  options.watch_identity_key_cert_pairs();
  options.set_cert_request_type(GRPC_SSL_REQUEST_AND_REQUIRE_CLIENT_CERTIFICATE_AND_VERIFY);
  options.set_certificate_verifier(std::make_shared<grpc::experimental::NoOpCertificateVerifier>());
  return grpc::experimental::TlsServerCredentials(options);
}

std::shared_ptr<grpc::ChannelCredentials> GrpcTls::for_dialling(
    std::optional<WorkerClaim> worker, std::shared_ptr<FarEnd> far_end) const {
  grpc::experimental::TlsChannelCredentialsOptions options;
  options.set_certificate_provider(provider_);
  options.watch_root_certs();
  options.watch_identity_key_cert_pairs();
  options.set_verify_server_certs(true);
  options.set_check_call_host(false);  // the verifier checks the worker's name instead
  options.set_certificate_verifier(ExternalCertificateVerifier::Create<FarEndVerifier>(
      own_, std::move(worker), std::move(far_end), files_));
  return grpc::experimental::TlsCredentials(options);
}

}  // namespace weft
