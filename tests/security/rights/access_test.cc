// Who may call a function, as its registration says it.
#include "weft/security/rights/access.h"

#include <stdexcept>
#include <string>
#include <vector>

#include <gtest/gtest.h>

namespace weft {
namespace {

TEST(AccessTest, WithoutATagEveryMemberMayCall) {
  EXPECT_TRUE(AccessRule().allows("trainer"));
  EXPECT_TRUE(AccessRule().allows(""));
  EXPECT_EQ(AccessRule(Access()), AccessRule());
  EXPECT_EQ(AccessRule().to_string(), "every member");
}

TEST(AccessTest, OnlyTheNamedRolesMayCall) {
  const AccessRule rule(Access{"trainer", "evaluator-2"});
  EXPECT_TRUE(rule.allows("trainer"));
  EXPECT_TRUE(rule.allows("evaluator-2"));
  for (const char* other : {"", "train", "trainers", "evaluator", "trainer,evaluator-2", ","}) {
    EXPECT_FALSE(rule.allows(other)) << other;
  }
  EXPECT_EQ(rule.to_string(), "roles evaluator-2, trainer");
  EXPECT_EQ(AccessRule(Access{"a"}).to_string(), "role a");
}

TEST(AccessTest, WhatIsLocalIsForNobodyElse) {
  const AccessRule rule(local_only);
  EXPECT_FALSE(rule.allows("trainer"));
  EXPECT_FALSE(rule.allows(""));
  EXPECT_EQ(rule.to_string(), "no other worker");
}

TEST(AccessTest, ARoleOfAWorkerHasTheSameCharacters) {
  for (const char* good : {"default", "evaluator-2", "a", "a.b_c"}) {
    EXPECT_EQ(check_role(good), absl::OkStatus()) << good;
  }
  for (const std::string& bad : {std::string(), std::string("a b"), std::string("a,b"),
                                 std::string("\n"), std::string(".."), std::string(128, 'a')}) {
    EXPECT_TRUE(absl::IsInvalidArgument(check_role(bad))) << bad;
  }
}

TEST(AccessTest, BadRolesAreRefused) {
  EXPECT_THROW(Access{""}, std::invalid_argument);
  EXPECT_THROW(Access("a", "b c"), std::invalid_argument);
  EXPECT_THROW(Access{"a,b"}, std::invalid_argument);
  constexpr char kLong[] =
      "01234567890123456789012345678901234567890123456789012345678901234567890123456789012345678901"
      "23"
      "456789012345678901234567890123456";
  static_assert(sizeof kLong == 128);
  EXPECT_EQ(AccessRule(Access{kLong}).roles, std::vector<std::string>{kLong});
  EXPECT_THROW(Access("a", kLong), std::invalid_argument);
  static_assert(Access{"trainer"}.roles[6] == 'r');  // it is a constant
}

}  // namespace
}  // namespace weft
