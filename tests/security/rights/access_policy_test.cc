// A policy of a site is right or refused, and its first rule that fits a function counts.
#include "weft/security/rights/access_policy.h"

#include <filesystem>
#include <fstream>
#include <optional>
#include <string>
#include <unistd.h>
#include <vector>

#include <gmock/gmock.h>
#include <gtest/gtest.h>

namespace weft {
namespace {

using ::testing::AllOf;
using ::testing::HasSubstr;

constexpr char kPolicy[] = R"({
  "roles": ["trainer", "evaluator", "server"],
  "rules": [
    {"functions": "ps::push", "roles": ["trainer"]},
    {"functions": "ps::*", "roles": ["trainer", "evaluator"]},
    {"functions": "*::stop", "roles": "none"},
    {"functions": "weft.to_*", "roles": ["trainer"]},
    {"functions": "*", "roles": "any"}
  ],
  "default": "none"
})";

AccessPolicy policy_of(std::string_view text) {
  absl::StatusOr<AccessPolicy> policy = AccessPolicy::parse(text, "site.json");
  EXPECT_TRUE(policy.ok()) << policy.status();
  return *std::move(policy);
}

std::string rule(const AccessPolicy& policy, std::string_view function,
                 const std::optional<AccessRule>& tag = std::nullopt) {
  const absl::StatusOr<AccessRule> rule = policy.rule_for(function, tag);
  return rule.ok() ? rule->to_string() : std::string(rule.status().message());
}

TEST(AccessPolicyTest, TheFirstRuleThatFitsDecides) {
  const AccessPolicy policy = policy_of(kPolicy);
  EXPECT_EQ(rule(policy, "ps::push"), "role trainer");
  EXPECT_EQ(rule(policy, "ps::push_all"), "roles trainer, evaluator");
  EXPECT_EQ(rule(policy, "ps::"), "roles trainer, evaluator");
  EXPECT_EQ(rule(policy, "admin::stop"), "no other worker");
  EXPECT_EQ(rule(policy, "admin::stop_all"), "every member");
  EXPECT_EQ(rule(policy, "ps::push", AccessRule(local_only)), "role trainer");
}

TEST(AccessPolicyTest, StarsStandForAnyCharacters) {
  const auto fits = [](const std::string& pattern, std::string_view name) {
    const AccessPolicy policy = policy_of(R"({"roles": ["a"], "rules": [{"functions": ")" +
                                          pattern + R"(", "roles": "any"}], "default": "none"})");
    return rule(policy, name) == "every member";
  };
  EXPECT_TRUE(fits("a*b*c", "abc"));
  EXPECT_TRUE(fits("a*b*c", "a1b2b3c"));
  EXPECT_TRUE(fits("**", "x"));
  EXPECT_TRUE(fits("*", ""));
  EXPECT_TRUE(fits("*ab", "aab"));
  EXPECT_FALSE(fits("a*b*c", "acb"));
  EXPECT_FALSE(fits("ab", "abc"));
  EXPECT_FALSE(fits("abc", "ab"));
  EXPECT_FALSE(fits("?b", "ab"));
}

TEST(AccessPolicyTest, OtherwiseTheTagDecidesAndThenTheDefault) {
  const AccessPolicy policy =
      policy_of(R"({"roles": ["trainer"], "rules": [], "default": "none"})");
  EXPECT_EQ(rule(policy, "f", AccessRule(Access{"trainer"})), "role trainer");
  EXPECT_EQ(rule(policy, "f", AccessRule()), "every member");
  EXPECT_EQ(rule(policy, "f"), "no other worker");
  EXPECT_THAT(rule(policy, "f", AccessRule(Access{"trainee"})),
              AllOf(HasSubstr("site.json"), HasSubstr("'f'"), HasSubstr("'trainee'")));
}

// A policy that forbids everything must not keep workers from fetching values.
TEST(AccessPolicyTest, OnlyPatternsForThemFitWeftsOwnFunctions) {
  const AccessPolicy policy = policy_of(kPolicy);
  EXPECT_EQ(rule(policy, "weft.to_here"), "role trainer");
  EXPECT_EQ(rule(policy, "weft.wait"), "every member");
  EXPECT_EQ(rule(policy, "weft::pipeline_internal::stop"), "every member");
  const AccessPolicy closed =
      policy_of(R"({"roles": ["a"], "rules": [{"functions": "*", "roles": "none"}],)"
                R"("default": "none"})");
  EXPECT_EQ(rule(closed, "weft.wait"), "every member");
  EXPECT_EQ(rule(closed, "weftless"), "no other worker");
  // These are users' modules.
  EXPECT_EQ(rule(closed, "weft::HostedModule<ns::Head>"), "no other worker");
}

TEST(AccessPolicyTest, ARoleMustBeListed) {
  const AccessPolicy policy = policy_of(kPolicy);
  EXPECT_EQ(policy.check_role("server", "worker 'ps'"), absl::OkStatus());
  const absl::Status unknown = policy.check_role("sever", "worker 'ps'");
  EXPECT_TRUE(absl::IsInvalidArgument(unknown));
  EXPECT_THAT(std::string(unknown.message()),
              AllOf(HasSubstr("site.json"), HasSubstr("worker 'ps'"), HasSubstr("'sever'"),
                    HasSubstr("trainer, evaluator, server")));
}

TEST(AccessPolicyTest, EachRuleMustDecideAboutAFunction) {
  const AccessPolicy policy = policy_of(kPolicy);
  EXPECT_EQ(policy.check_rules({"ps::push", "ps::pull", "a::stop", "weft.to_here", "f"}),
            absl::OkStatus());
  const auto useless = [&](const std::vector<std::string_view>& functions) {
    const absl::Status status = policy.check_rules(functions);
    EXPECT_TRUE(absl::IsInvalidArgument(status));
    return std::string(status.message());
  };
  EXPECT_THAT(useless({"ps::push", "ps::pull", "a::stop", "f"}),
              HasSubstr("rule 4: 'weft.to_*' fits no function"));
  // An earlier rule decides about all that the second one fits.
  EXPECT_THAT(useless({"ps::push", "a::stop", "weft.to_here", "f"}),
              HasSubstr("rule 2: 'ps::*' is of no use"));
}

TEST(AccessPolicyTest, WhatIsWrongIsRefusedByItsPlace) {
  struct Case {
    const char* text;
    const char* told;
  };
  const Case cases[] = {
      {"", "parse error"},
      {"[]", "the file is not an object"},
      {R"({"roles": ["a"], "rules": []})", "the file has no field 'default'"},
      {R"({"roles": ["a"], "rules": [], "default": "any", "rule": []})",
       "the file has an unknown field 'rule'"},
      {R"({"roles": ["a"], "roles": ["b"], "rules": [], "default": "any"})",
       "field 'roles' is there twice"},
      {R"({"roles": [], "rules": [], "default": "any"})", "\"roles\" is an empty list"},
      {R"({"roles": "a", "rules": [], "default": "any"})", "\"roles\" is not a list of roles"},
      {R"({"roles": ["a", 1], "rules": [], "default": "any"})", "\"roles\" has a role that is no"},
      {R"({"roles": ["a", ""], "rules": [], "default": "any"})", "\"roles\" has role '' of 0"},
      {R"({"roles": ["a", "a"], "rules": [], "default": "any"})", "has role 'a' twice"},
      {R"({"roles": ["a"], "rules": {}, "default": "any"})", "\"rules\" is not a list"},
      {R"({"roles": ["a"], "rules": [], "default": "deny"})",
       "\"default\" is not \"any\" or \"none\""},
      {R"({"roles": ["a"], "rules": [], "default": ["a"]})",
       "\"default\" is not \"any\" or \"none\""},
      {R"({"roles": ["a"], "rules": [{"functions": "f", "roles": ["b"]}], "default": "any"})",
       "rule 1: \"roles\" names role 'b', which is not in \"roles\""},
      {R"({"roles": ["a"], "rules": [{"functions": "f", "roles": []}], "default": "any"})",
       "rule 1: \"roles\" is an empty list"},
      {R"({"roles": ["a"], "rules": [{"functions": "f", "roles": "all"}], "default": "any"})",
       "rule 1: \"roles\" is not a list of roles, \"any\" or \"none\""},
      {R"({"roles": ["a b"], "rules": [], "default": "any"})", "\"roles\" has role 'a b' of 3"},
      {R"({"roles": ["a"], "rules": [{"functions": "", "roles": "any"}], "default": "any"})",
       "rule 1 has no pattern for functions"},
      {R"({"roles": ["a"], "rules": [{"functions": ["f"], "roles": "any"}], "default": "any"})",
       "rule 1 has no pattern for functions"},
      {R"({"roles": ["a"], "rules": [{"function": "f", "roles": "any"}], "default": "any"})",
       "rule 1 has an unknown field 'function'"},
      {R"({"roles": ["a"], "rules": ["f"], "default": "any"})", "rule 1 is not an object"},
      {R"({"roles": [[[[[["a"]]]]]], "rules": [], "default": "any"})", "nested too deeply"},
  };
  for (const Case& one : cases) {
    const absl::Status refused = AccessPolicy::parse(one.text, "site.json").status();
    EXPECT_TRUE(absl::IsInvalidArgument(refused)) << one.text;
    EXPECT_THAT(std::string(refused.message()),
                AllOf(HasSubstr("policy site.json: "), HasSubstr(one.told)))
        << one.text;
  }
  const std::string large(size_t{2} << 20, ' ');
  EXPECT_THAT(std::string(AccessPolicy::parse(large, "site.json").status().message()),
              HasSubstr("more than 1048576 bytes"));
}

TEST(AccessPolicyTest, NobodyElseMayChangeTheFile) {
  namespace fs = std::filesystem;
  std::string folder = (fs::temp_directory_path() / "weft_policy_XXXXXX").string();
  ASSERT_NE(::mkdtemp(folder.data()), nullptr);
  const std::string file = folder + "/site.json";
  EXPECT_TRUE(absl::IsNotFound(AccessPolicy::read(file).status()));
  std::ofstream(file) << kPolicy;
  fs::permissions(file, fs::perms(0644));
  EXPECT_EQ(AccessPolicy::read(file).status(), absl::OkStatus());
  fs::permissions(file, fs::perms(0664));
  EXPECT_TRUE(absl::IsPermissionDenied(AccessPolicy::read(file).status()));
  fs::remove_all(folder);
}

}  // namespace
}  // namespace weft
