// Who may call a store whose callers have certificates, and who may change which key.
#include <chrono>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include <gmock/gmock.h>
#include <grpcpp/generic/generic_stub.h>
#include <grpcpp/grpcpp.h>
#include <grpcpp/security/tls_credentials_options.h>
#include <gtest/gtest.h>

#include "weft/security/certificate_name.h"
#include "weft/store/store_client.h"
#include "weft/store/store_handle.h"
#include "weft/store/store_server.h"
#include "weft/tests/base/captured_log.h"
#include "weft/tests/security/certificate_maker.h"

namespace weft {
namespace {

using ::testing::HasSubstr;

class GrpcStoreNamesTest : public ::testing::Test {
 protected:
  GrpcStoreNamesTest() {
    StoreServerOptions options;
    options.tls = identity(site_, "worker0");
    options.proves_names = true;
    options.own_name = "worker0";
    auto started = StoreServer::start(options);
    EXPECT_TRUE(started.ok()) << started.status();
    address_ = (*started)->address();
    own_ = std::make_unique<StoreHandle>(*std::move(started), absl::Seconds(20));
  }

  static std::shared_ptr<TlsIdentity> identity(const CertificateMaker& site,
                                               const std::string& worker,
                                               const std::string& run = "job") {
    CertificateRequest request;
    request.uris = {"spiffe://site.example/weft/" + run_digest(run) + "/default/" + worker};
    return std::make_shared<TlsIdentity>(site.make(request));
  }
  std::unique_ptr<StoreHandle> client(std::shared_ptr<TlsIdentity> tls,
                                      absl::Duration timeout = absl::Seconds(20)) {
    auto made = StoreClient::create({.address = address_, .tls = std::move(tls)});
    EXPECT_TRUE(made.ok()) << made.status();
    return std::make_unique<StoreHandle>(*std::move(made), timeout);
  }

  const testing::CapturedLog log_;
  const CertificateMaker site_;
  std::string address_;
  std::unique_ptr<StoreHandle> own_;
};

TEST_F(GrpcStoreNamesTest, AKeyBelongsToTheWorkerThatWroteIt) {
  const auto one = client(identity(site_, "worker1"));
  const auto two = client(identity(site_, "worker2"));
  ASSERT_TRUE(one->set("member/1", "mine").ok());
  ASSERT_TRUE(own_->set("member/0", "own").ok());
  for (const char* key : {"member/0", "member/1"}) {
    const absl::Status refused = two->set(key, "forged");
    EXPECT_TRUE(absl::IsPermissionDenied(refused)) << refused;
    EXPECT_THAT(std::string(refused.message()), HasSubstr("belongs to worker"));
  }
  EXPECT_TRUE(absl::IsPermissionDenied(own_->set("member/1", "forged")));
  EXPECT_EQ(*two->get("member/1", absl::Seconds(20)), "mine");
  EXPECT_TRUE(client(identity(site_, "worker1"))->set("member/1", "again").ok());
}

TEST_F(GrpcStoreNamesTest, ProcessesOfNoOrAnotherJobAreRefusedAndTold) {
  const CertificateMaker another;
  const absl::Duration soon = absl::Seconds(2);
  const absl::Status authority = client(identity(another, "worker1"), soon)->set("key", "x");
  EXPECT_TRUE(absl::IsUnauthenticated(authority)) << authority;
  const absl::Status job = client(identity(site_, "worker1", "another job"), soon)->set("key", "x");
  EXPECT_THAT(std::string(job.message()), HasSubstr("not of this job")) << job;
  EXPECT_FALSE(client(nullptr, soon)->set("key", "x").ok());
  EXPECT_EQ(*own_->count(), 0);
}

// What a client of Weft would refuse to do itself.
wire::StoreReply call_with(const std::string& address, const TlsCredentials& credentials,
                           wire::StoreCall call) {
  namespace tls = grpc::experimental;
  tls::TlsChannelCredentialsOptions options;
  options.set_certificate_provider(std::make_shared<tls::StaticDataCertificateProvider>(
      credentials.authorities, std::vector<tls::IdentityKeyCertPair>{
                                   {std::string(credentials.key.text()), credentials.chain}}));
  options.watch_root_certs();
  options.watch_identity_key_cert_pairs();
  options.set_certificate_verifier(std::make_shared<tls::NoOpCertificateVerifier>());
  options.set_check_call_host(false);
  grpc::GenericStub stub(grpc::CreateChannel(address, tls::TlsCredentials(options)));
  grpc::ClientContext context;
  context.set_deadline(std::chrono::system_clock::now() + std::chrono::seconds(20));
  grpc::CompletionQueue queue;
  const std::string text = call.SerializeAsString();
  const grpc::Slice slice(text);
  grpc::ByteBuffer question(&slice, 1), answer;
  const auto calling = stub.PrepareUnaryCall(&context, "/weft.Store/Call", question, &queue);
  grpc::Status status;
  calling->StartCall();
  calling->Finish(&answer, &status, nullptr);
  void* tag = nullptr;
  bool ok = false;
  EXPECT_TRUE(queue.Next(&tag, &ok));
  EXPECT_TRUE(status.ok()) << status.error_message();
  grpc::Slice whole;
  wire::StoreReply reply;
  EXPECT_TRUE(answer.TrySingleSlice(&whole).ok());
  EXPECT_TRUE(reply.ParseFromArray(whole.begin(), static_cast<int>(whole.size())));
  return reply;
}

TEST_F(GrpcStoreNamesTest, TheStoreItselfRefusesACertificateOfAnotherJob) {
  wire::StoreCall call;
  call.set_version(kStoreVersion);
  call.mutable_count();
  const auto mine = identity(site_, "worker1"), other = identity(site_, "worker1", "another job");
  EXPECT_EQ(call_with(address_, *mine->current(), call).code(), 0u);
  const wire::StoreReply refused = call_with(address_, *other->current(), call);
  EXPECT_EQ(refused.code(), static_cast<uint32_t>(absl::StatusCode::kPermissionDenied));
  EXPECT_THAT(refused.error(), HasSubstr("not of this job"));
}

}  // namespace
}  // namespace weft
