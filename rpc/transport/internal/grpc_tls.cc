#include "weft/rpc/transport/internal/grpc_tls.h"

#include <functional>
#include <utility>

#include <grpcpp/security/tls_certificate_verifier.h>
#include <grpcpp/security/tls_credentials_options.h>

#include "absl/strings/str_cat.h"
#include "weft/base/log.h"
#include "weft/base/status.h"

namespace weft::rpc_internal {
namespace {

using grpc::experimental::ExternalCertificateVerifier;
using grpc::experimental::StaticDataCertificateProvider;
using grpc::experimental::TlsCustomVerificationCheckRequest;

// Checks the far end of one dial. gRPC calls it after OpenSSL has accepted the certificate.
class FarEndVerifier final : public ExternalCertificateVerifier {
 public:
  FarEndVerifier(CertificateName own, std::string worker, std::shared_ptr<FarEndRefusal> refusal)
      : own_(std::move(own)), worker_(std::move(worker)), refusal_(std::move(refusal)) {}

  bool Verify(TlsCustomVerificationCheckRequest* request, std::function<void(grpc::Status)>,
              grpc::Status* result) override {
    std::vector<std::string> uris;
    for (const grpc::string_ref& uri : request->uri_names()) {
      uris.emplace_back(uri.data(), uri.size());
    }
    const absl::StatusOr<CertificateName> name = name_in_job(own_, uris);
    absl::Status refused = name.status();
    if (name.ok() && name->worker != worker_) {
      refused = absl::FailedPreconditionError(
          absl::StrCat("the certificate of worker '", name->worker, "' answers there"));
    }
    if (!refused.ok()) {
      *result = grpc::Status(grpc::StatusCode::UNAUTHENTICATED, std::string(refused.message()));
      refusal_->set(std::move(refused));
    }
    return true;  // it is done
  }
  void Cancel(TlsCustomVerificationCheckRequest*) override {}

 private:
  const CertificateName own_;
  const std::string worker_;
  const std::shared_ptr<FarEndRefusal> refusal_;
};

}  // namespace

GrpcTls::GrpcTls(const TlsCredentials& own)
    : own_(own.name),
      provider_(std::make_shared<StaticDataCertificateProvider>(
          own.authorities, std::vector<grpc::experimental::IdentityKeyCertPair>{
                               {std::string(own.key.text()), own.chain}})) {}

std::shared_ptr<grpc::ServerCredentials> GrpcTls::for_listening() const {
  grpc::experimental::TlsServerCredentialsOptions options(provider_);
  options.watch_root_certs();
  options.watch_identity_key_cert_pairs();
  options.set_cert_request_type(GRPC_SSL_REQUEST_AND_REQUIRE_CLIENT_CERTIFICATE_AND_VERIFY);
  options.set_certificate_verifier(std::make_shared<grpc::experimental::NoOpCertificateVerifier>());
  return grpc::experimental::TlsServerCredentials(options);
}

std::shared_ptr<grpc::ChannelCredentials> GrpcTls::for_dialling(
    std::string worker, std::shared_ptr<FarEndRefusal> refusal) const {
  grpc::experimental::TlsChannelCredentialsOptions options;
  options.set_certificate_provider(provider_);
  options.watch_root_certs();
  options.watch_identity_key_cert_pairs();
  options.set_verify_server_certs(true);
  options.set_check_call_host(false);  // the verifier checks the worker's name instead
  options.set_certificate_verifier(ExternalCertificateVerifier::Create<FarEndVerifier>(
      own_, std::move(worker), std::move(refusal)));
  return grpc::experimental::TlsCredentials(options);
}

absl::Status GrpcTls::check_hello(const std::vector<std::string>& uris,
                                  const std::string& worker) const {
  WEFT_ASSIGN_OR_RETURN(const CertificateName name, name_in_job(own_, uris));
  if (name.worker == worker) return absl::OkStatus();
  return absl::PermissionDeniedError(absl::StrCat("the certificate names worker '", name.worker,
                                                  "', but the hello names '", worker, "'"));
}

}  // namespace weft::rpc_internal
