// The policy file of a site, which an editor or a template may have broken. A policy that is
// accepted gives each function a rule whose roles are listed.
#include "weft/security/rights/access_policy.h"
#include "weft/tests/fuzz/fuzz.h"

int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  using weft::fuzz::require;
  using weft::fuzz::require_refusal;
  const std::string_view text(reinterpret_cast<const char*>(data), size);
  const auto policy = weft::AccessPolicy::parse(text, "fuzz");
  if (!policy.ok()) {
    require_refusal(policy.status());
    return 0;
  }
  for (const std::string_view function : {"", "a", "ps::push", "weft.to_here", "weft::f"}) {
    const auto rule = policy->rule_for(function, std::nullopt);
    require(rule.ok(), "a function without an Access has no rule");
    for (const std::string& role : rule->roles) {
      require(policy->check_role(role, "a rule").ok(), "a rule has a role that is not listed");
      require(rule->allows(role), "a role of a rule may not call");
    }
    require(!rule->local_only || rule->roles.empty(), "a rule for nobody has roles");
  }
  (void)policy->check_rules({"a", "ps::push", "weft.to_here"});
  return 0;
}
