// What WEFT_SECURITY and WEFT_PLAIN_COLLECTIVES mean, and which values are refused.
#include "weft/security/security_mode.h"

#include <string>

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "weft/tests/base/environment_of.h"

namespace weft {
namespace {

using ::testing::AllOf;
using testing::environment_of;
using ::testing::HasSubstr;

TEST(SecurityModeTest, EachModeHasItsText) {
  EXPECT_EQ(find_security_mode(environment_of({})).value(), SecurityMode::kAuto);
  for (const SecurityMode mode : {SecurityMode::kAuto, SecurityMode::kMtls, SecurityMode::kNone}) {
    EXPECT_EQ(find_security_mode(environment_of({{"WEFT_SECURITY", std::string(to_string(mode))}}))
                  .value(),
              mode);
  }
}

TEST(SecurityModeTest, OtherTextsAreRefusedByNameAndValue) {
  for (const std::string text : {"", "tls", "MTLS", "none "}) {
    const absl::Status refused =
        find_security_mode(environment_of({{"WEFT_SECURITY", text}})).status();
    EXPECT_TRUE(absl::IsInvalidArgument(refused));
    EXPECT_THAT(std::string(refused.message()),
                AllOf(HasSubstr("WEFT_SECURITY"), HasSubstr("'" + text + "'")));
  }
}

TEST(SecurityModeTest, TheModeDecidesAboutPlainTraffic) {
  EXPECT_EQ(find_plain_traffic(environment_of({})).value(), PlainTraffic::kWarn);
  EXPECT_EQ(find_plain_traffic(environment_of({{"WEFT_SECURITY", "mtls"}})).value(),
            PlainTraffic::kRefuse);
  EXPECT_EQ(find_plain_traffic(environment_of({{"WEFT_SECURITY", "none"}})).value(),
            PlainTraffic::kAllow);
}

TEST(SecurityModeTest, PlainTrafficCanBeAllowedAndNothingElseCanBeSaid) {
  for (const std::string mode : {"auto", "mtls", "none"}) {
    EXPECT_EQ(find_plain_traffic(
                  environment_of({{"WEFT_SECURITY", mode}, {"WEFT_PLAIN_COLLECTIVES", "allow"}}))
                  .value(),
              PlainTraffic::kAllow);
  }
  const absl::Status refused =
      find_plain_traffic(environment_of({{"WEFT_PLAIN_COLLECTIVES", "yes"}})).status();
  EXPECT_THAT(std::string(refused.message()),
              HasSubstr("WEFT_PLAIN_COLLECTIVES='yes' is not allow"));
  EXPECT_FALSE(find_plain_traffic(environment_of({{"WEFT_SECURITY", "?"}})).ok());
}

}  // namespace
}  // namespace weft
