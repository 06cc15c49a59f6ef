#include "weft/security/certificate_name.h"

#include <string>

#include <gmock/gmock.h>
#include <gtest/gtest.h>

namespace weft {
namespace {

using ::testing::AllOf;
using ::testing::HasSubstr;

TEST(CertificateNameTest, AUriHoldsAllOfIt) {
  const auto name = certificate_name("any run id: 1/2", "trainer", "worker-1.a_b");
  ASSERT_TRUE(name.ok()) << name.status();
  EXPECT_EQ(name->run.size(), 32u);
  EXPECT_EQ(name->uri(), "spiffe://weft.local/weft/" + name->run + "/trainer/worker-1.a_b");
  const auto parsed = parse_certificate_name(name->uri());
  ASSERT_TRUE(parsed.ok()) << parsed.status();
  EXPECT_EQ(*parsed, *name);
}

TEST(CertificateNameTest, TheRunIsPartOfASha256) {
  EXPECT_EQ(run_digest("abc"),
            "ba7816bf8f01cfea414140de5dae2223");  // FIPS 180-4, example of SHA-256
}

TEST(CertificateNameTest, ANameProvesTheWorkerAndARankEachWorkerOfTheRank) {
  EXPECT_TRUE(proves("a", {"a", 3}));
  EXPECT_TRUE(proves("a", {"a", std::nullopt}));
  EXPECT_FALSE(proves("a", {"b", 3}));
  EXPECT_TRUE(proves(name_of_rank(3), {"a", 3}));
  EXPECT_FALSE(proves("rank.3", {"a", 4}));
  EXPECT_FALSE(proves("rank.3", {"rank.3", 4}));
  EXPECT_FALSE(proves("rank.3", {"rank.3", std::nullopt}));
  EXPECT_FALSE(proves("rank.03", {"a", 3}));
  EXPECT_FALSE(proves("rank.", {"a", 0}));
  EXPECT_TRUE(proves("rank.leader", {"rank.leader", 0}));  // no rank
}

TEST(CertificateNameTest, AnEmptyRoleIsTheDefaultOne) {
  EXPECT_EQ(certificate_name("run", "", "a")->role, "default");
}

TEST(CertificateNameTest, ARoleOrNameThatDoesNotFitAUriIsAnErrorThatShowsIt) {
  for (const std::string bad : {"a:b", "a/b", "a b", "ä", "..", "."}) {
    const auto role = certificate_name("run", bad, "a");
    EXPECT_EQ(role.status().code(), absl::StatusCode::kInvalidArgument);
    EXPECT_THAT(std::string(role.status().message()), HasSubstr("role"));
    const auto worker = certificate_name("run", "r", bad);
    EXPECT_THAT(std::string(worker.status().message()), HasSubstr("worker name"));
  }
  EXPECT_FALSE(certificate_name("run", "r", std::string(128, 'a')).ok());
}

TEST(CertificateNameTest, OtherUrisAreRefused) {
  for (const char* bad :
       {"", "spiffe://", "https://weft.local/weft/run/role/a",
        "spiffe://weft.local/other/run/role/a", "spiffe://weft.local/weft/run/role",
        "spiffe://weft.local/weft/run/role/a/b", "spiffe://weft.local/weft/run/role/",
        "spiffe://weft.local/weft//role/a", "spiffe://weft.local/weft/run/../a",
        "spiffe://user@weft.local/weft/run/role/a", "spiffe://weft.local:80/weft/run/role/a",
        "spiffe://weft.local/weft/run/ro%6ce/a"}) {
    const auto parsed = parse_certificate_name(bad);
    EXPECT_EQ(parsed.status().code(), absl::StatusCode::kInvalidArgument) << bad;
    EXPECT_THAT(std::string(parsed.status().message()),
                AllOf(HasSubstr(bad), HasSubstr("spiffe://TRUST/weft/RUN/ROLE/NAME")));
  }
  EXPECT_FALSE(parse_certificate_name("spiffe://t/weft/r/r/" + std::string(3000, 'a')).ok());
}

TEST(CertificateNameTest, ThereMustBeExactlyOne) {
  const std::string uri = "spiffe://t/weft/run/role/a";
  EXPECT_TRUE(only_certificate_name({uri}).ok());
  EXPECT_THAT(std::string(only_certificate_name({}).status().message()), HasSubstr("has 0 URIs"));
  EXPECT_THAT(std::string(only_certificate_name({uri, uri}).status().message()),
              HasSubstr("has 2 URIs"));
}

}  // namespace
}  // namespace weft
