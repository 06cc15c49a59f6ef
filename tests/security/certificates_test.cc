#include "weft/security/certificates.h"

#include <string>

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "weft/tests/security/certificate_maker.h"

namespace weft {
namespace {

using ::testing::AllOf;
using ::testing::HasSubstr;

constexpr char kSecret[] = "0123456789abcdef0123456789abcdef";

JobAuthority authority(std::string_view secret = kSecret, std::string_view run_id = "run") {
  auto made = JobAuthority::from_secret(SecretBytes(secret), run_id);
  EXPECT_TRUE(made.ok()) << made.status();
  return *std::move(made);
}

absl::Status check(std::string authorities, std::string chain, std::string_view key) {
  return check_credentials(std::move(authorities), std::move(chain), SecretBytes(key)).status();
}

absl::Status check(const TlsCredentials& made) {
  return check(made.authorities, made.chain, made.key.text());
}

TEST(JobAuthorityTest, TheSameSecretAndRunMakeTheSameCertificate) {
  EXPECT_EQ(authority().certificate(), authority().certificate());
  EXPECT_NE(authority().certificate(), authority(std::string(kSecret) + "x").certificate());
  EXPECT_NE(authority().certificate(), authority(kSecret, "another run").certificate());
}

TEST(JobAuthorityTest, WhatItIssuesIsGoodForItsOwnJobOnly) {
  const CertificateName name = *certificate_name("run", "trainer", "a");
  const auto issued = authority().issue(name);
  ASSERT_TRUE(issued.ok()) << issued.status();
  const auto checked =
      check_credentials(authority().certificate(), issued->chain, SecretBytes(issued->key.text()));
  ASSERT_TRUE(checked.ok()) << checked.status();
  EXPECT_EQ(checked->name, name);
  const absl::Status refused =
      check(authority(kSecret, "another run").certificate(), issued->chain, issued->key.text());
  EXPECT_EQ(refused.code(), absl::StatusCode::kPermissionDenied) << refused;
}

TEST(JobAuthorityTest, EachCertificateHasItsOwnKey) {
  const CertificateName name = *certificate_name("run", "trainer", "a");
  const auto one = authority().issue(name);
  const auto two = authority().issue(name);
  EXPECT_NE(one->key.text(), two->key.text());
  const absl::Status status = check(one->authorities, one->chain, two->key.text());
  EXPECT_THAT(std::string(status.message()), HasSubstr("key does not belong"));
}

TEST(CheckCredentialsTest, AcceptsWhatASiteIssues) {
  const CertificateMaker site;
  const TlsCredentials made = site.make();
  const auto checked =
      check_credentials(made.authorities, made.chain, SecretBytes(made.key.text()));
  ASSERT_TRUE(checked.ok()) << checked.status();
  EXPECT_EQ(checked->name, made.name);
  EXPECT_EQ(checked->chain, made.chain);
  EXPECT_EQ(checked->key.text(), made.key.text());
}

TEST(CheckCredentialsTest, ATextThatIsNoPemIsAnError) {
  const CertificateMaker site;
  const TlsCredentials made = site.make();
  const std::string key(made.key.text());
  const std::string broken = made.chain.substr(0, made.chain.size() / 2);
  EXPECT_THAT(std::string(check("", made.chain, key).message()),
              HasSubstr("authorities holds no certificate"));
  EXPECT_THAT(std::string(check(made.authorities, "no PEM", key).message()),
              HasSubstr("certificate holds no certificate"));
  EXPECT_THAT(std::string(check(made.authorities, made.chain + broken, key).message()),
              HasSubstr("broken certificate"));
  EXPECT_THAT(std::string(check(made.authorities, made.chain, "no PEM").message()),
              HasSubstr("no private key"));
  EXPECT_THAT(std::string(check(made.authorities, made.chain, "").message()),
              HasSubstr("no private key"));
}

TEST(CheckCredentialsTest, ACertificateOfAnotherAuthorityIsRefused) {
  const TlsCredentials made = CertificateMaker().make();
  const absl::Status status = check(CertificateMaker().certificate(), made.chain, made.key.text());
  EXPECT_EQ(status.code(), absl::StatusCode::kPermissionDenied);
  EXPECT_THAT(std::string(status.message()), HasSubstr("the certificate is refused: "));
}

TEST(CheckCredentialsTest, ATimeThatDoesNotFitIsToldWithThisMachinesClock) {
  const CertificateMaker site;
  const absl::Status expired = check(site.make({.begins = -7200, .ends = -3600}));
  EXPECT_EQ(expired.code(), absl::StatusCode::kPermissionDenied);
  EXPECT_THAT(std::string(expired.message()), AllOf(HasSubstr("expired"), HasSubstr("it ended at"),
                                                    HasSubstr("this machine's clock says 20")));
  const absl::Status early = check(site.make({.begins = 3600, .ends = 7200}));
  EXPECT_EQ(early.code(), absl::StatusCode::kPermissionDenied);
  EXPECT_THAT(std::string(early.message()),
              AllOf(HasSubstr("not yet valid"), HasSubstr("it begins at"),
                    HasSubstr("Compare the clocks")));
}

TEST(CheckCredentialsTest, ItMustBeForServersAndForClients) {
  const CertificateMaker site;
  for (const char* purposes : {"serverAuth", "clientAuth", "codeSigning"}) {
    const absl::Status status = check(site.make({.purposes = purposes}));
    EXPECT_EQ(status.code(), absl::StatusCode::kPermissionDenied) << purposes;
    EXPECT_THAT(std::string(status.message()), HasSubstr("for TLS servers and for TLS clients"));
  }
}

TEST(CheckCredentialsTest, AUriIsReadBeyondAByteOfZero) {
  const CertificateMaker site;
  const std::string uri = CertificateRequest().uris.front() + std::string("\0.evil", 6);
  EXPECT_THAT(uris_of_certificate(site.make({.uris = {uri}}).chain), ::testing::ElementsAre(uri));
  EXPECT_EQ(check(site.make({.uris = {uri}})).code(), absl::StatusCode::kInvalidArgument);
  EXPECT_THAT(uris_of_certificate("no PEM"), ::testing::IsEmpty());
}

TEST(CheckCredentialsTest, ExactlyOneUriNamesTheWorker) {
  const CertificateMaker site;
  const std::string uri = CertificateRequest().uris.front();
  EXPECT_THAT(std::string(check(site.make({.uris = {uri, uri + "2"}})).message()),
              HasSubstr("has 2 URIs"));
  EXPECT_THAT(std::string(check(site.make({.uris = {}, .common_name = "a"})).message()),
              HasSubstr("has 0 URIs"));
  EXPECT_THAT(std::string(check(site.make({.uris = {"https://a/b"}})).message()),
              HasSubstr("spiffe://TRUST/weft/RUN/ROLE/NAME"));
}

}  // namespace
}  // namespace weft
