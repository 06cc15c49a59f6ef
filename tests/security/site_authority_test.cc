// A site's authority gives each worker a certificate of its own.
#include "weft/security/site_authority.h"

#include <chrono>
#include <string>

#include <gmock/gmock.h>
#include <gtest/gtest.h>

namespace weft {
namespace {

using ::testing::HasSubstr;
using std::chrono_literals::operator""h;

CertificateName name_of(const std::string& worker, const std::string& role = "trainer") {
  return *certificate_name("run", role, worker);
}

TEST(SiteAuthorityTest, WhatItIssuesProvesTheNameToThoseWhoTrustIt) {
  const auto site = SiteAuthority::create(100h);
  ASSERT_TRUE(site.ok()) << site.status();
  auto one = site->issue(name_of("a"), 10h);
  ASSERT_TRUE(one.ok()) << one.status();
  EXPECT_EQ(one->name, name_of("a"));
  EXPECT_EQ(one->authorities, site->certificate());
  const auto checked = check_credentials(site->certificate(), one->chain, std::move(one->key));
  ASSERT_TRUE(checked.ok()) << checked.status();
  EXPECT_EQ(checked->name, name_of("a"));
  auto other = SiteAuthority::create(100h)->issue(name_of("a"), 10h);
  const absl::Status refused =
      check_credentials(site->certificate(), other->chain, std::move(other->key)).status();
  EXPECT_TRUE(absl::IsPermissionDenied(refused)) << refused;
}

TEST(SiteAuthorityTest, ItsFilesAreAllOfIt) {
  const auto site = SiteAuthority::create(100h);
  const auto again = SiteAuthority::from_pem(site->certificate(), *site->key());
  ASSERT_TRUE(again.ok()) << again.status();
  auto made = again->issue(name_of("a"), 10h);
  ASSERT_TRUE(made.ok()) << made.status();
  EXPECT_TRUE(check_credentials(site->certificate(), made->chain, std::move(made->key)).ok());
}

TEST(SiteAuthorityTest, AnAuthorityThatIsNoneIsRefused) {
  const auto site = SiteAuthority::create(100h), other = SiteAuthority::create(100h);
  auto worker = site->issue(name_of("a"), 10h);
  const auto told = [](const std::string& certificate, const SecretBytes& key) {
    const absl::Status refused = SiteAuthority::from_pem(certificate, key).status();
    EXPECT_TRUE(absl::IsInvalidArgument(refused)) << refused;
    return std::string(refused.message());
  };
  EXPECT_THAT(told("", *site->key()), HasSubstr("holds no certificate"));
  EXPECT_THAT(told(site->certificate(), SecretBytes(std::string_view("no key"))),
              HasSubstr("no private key"));
  EXPECT_THAT(told(site->certificate(), *other->key()), HasSubstr("does not belong"));
  EXPECT_THAT(told(worker->chain, worker->key), HasSubstr("none of an authority"));
}

TEST(SiteAuthorityTest, NoCertificateOutlivesIt) {
  const auto site = SiteAuthority::create(10h);
  EXPECT_TRUE(site->issue(name_of("a"), 10h).ok());
  const absl::Status refused = site->issue(name_of("a"), 11h).status();
  EXPECT_TRUE(absl::IsInvalidArgument(refused));
  EXPECT_THAT(std::string(refused.message()), HasSubstr("outlive its authority, which ends at 20"));
}

TEST(SiteAuthorityTest, PeopleCanReadNamesAndDates) {
  const auto site = SiteAuthority::create(100h);
  const auto made = site->issue(name_of("a"), 10h);
  const auto facts = facts_of_certificates(made->chain + site->certificate(), "a file");
  ASSERT_TRUE(facts.ok()) << facts.status();
  ASSERT_EQ(facts->size(), 2u);
  EXPECT_EQ((*facts)[0].names, name_of("a").uri());
  EXPECT_EQ((*facts)[1].names, "");
  EXPECT_LT((*facts)[0].begins, (*facts)[0].ends);
  EXPECT_THAT(std::string(facts_of_certificates("x", "a file").status().message()),
              HasSubstr("a file holds no certificate"));
}

}  // namespace
}  // namespace weft
