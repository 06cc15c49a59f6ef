// What WEFT_SECURITY and WEFT_PLAIN_COLLECTIVES mean, and which values are refused.
#include "weft/security/security_mode.h"

#include <map>
#include <optional>
#include <string>

#include <gmock/gmock.h>
#include <gtest/gtest.h>

namespace weft {
namespace {

using ::testing::AllOf;
using ::testing::HasSubstr;

EnvironmentReader with(std::map<std::string, std::string> variables) {
  return [variables = std::move(variables)](const char* name) -> std::optional<std::string> {
    const auto found = variables.find(name);
    if (found == variables.end()) return std::nullopt;
    return found->second;
  };
}

TEST(SecurityModeTest, EachModeHasItsText) {
  EXPECT_EQ(find_security_mode(with({})).value(), SecurityMode::kAuto);
  for (const SecurityMode mode : {SecurityMode::kAuto, SecurityMode::kMtls, SecurityMode::kNone}) {
    EXPECT_EQ(find_security_mode(with({{"WEFT_SECURITY", std::string(to_string(mode))}})).value(),
              mode);
  }
}

TEST(SecurityModeTest, OtherTextsAreRefusedByNameAndValue) {
  for (const std::string text : {"", "tls", "MTLS", "none "}) {
    const absl::Status refused = find_security_mode(with({{"WEFT_SECURITY", text}})).status();
    EXPECT_TRUE(absl::IsInvalidArgument(refused));
    EXPECT_THAT(std::string(refused.message()),
                AllOf(HasSubstr("WEFT_SECURITY"), HasSubstr("'" + text + "'")));
  }
}

TEST(SecurityModeTest, TheModeDecidesAboutPlainTraffic) {
  EXPECT_EQ(find_plain_traffic(with({})).value(), PlainTraffic::kWarn);
  EXPECT_EQ(find_plain_traffic(with({{"WEFT_SECURITY", "mtls"}})).value(), PlainTraffic::kRefuse);
  EXPECT_EQ(find_plain_traffic(with({{"WEFT_SECURITY", "none"}})).value(), PlainTraffic::kAllow);
}

TEST(SecurityModeTest, PlainTrafficCanBeAllowedAndNothingElseCanBeSaid) {
  for (const std::string mode : {"auto", "mtls", "none"}) {
    EXPECT_EQ(
        find_plain_traffic(with({{"WEFT_SECURITY", mode}, {"WEFT_PLAIN_COLLECTIVES", "allow"}}))
            .value(),
        PlainTraffic::kAllow);
  }
  const absl::Status refused =
      find_plain_traffic(with({{"WEFT_PLAIN_COLLECTIVES", "yes"}})).status();
  EXPECT_THAT(std::string(refused.message()),
              HasSubstr("WEFT_PLAIN_COLLECTIVES='yes' is not allow"));
  EXPECT_FALSE(find_plain_traffic(with({{"WEFT_SECURITY", "?"}})).ok());
}

}  // namespace
}  // namespace weft
