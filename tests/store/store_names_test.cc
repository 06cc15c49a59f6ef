// Who may call a store whose callers have certificates, and who may change which key.
#include <memory>
#include <string>
#include <utility>

#include <gmock/gmock.h>
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

}  // namespace
}  // namespace weft
