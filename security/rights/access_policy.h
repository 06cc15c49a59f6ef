// The rights of a site: a file that says which roles may call which functions of a worker.
//
//   {
//     "roles": ["trainer", "evaluator", "server"],
//     "rules": [
//       {"functions": "ps::push", "roles": ["trainer"]},
//       {"functions": "ps::*", "roles": ["trainer", "evaluator"]},
//       {"functions": "admin::*", "roles": "none"},
//       {"functions": "weft.*", "roles": "any"}
//     ],
//     "default": "none"
//   }
//
// "roles" lists all roles of the job. The first rule whose pattern fits a function's wire name
// decides about it, also if its registration has an Access. `*` stands for any characters. A rule
// gives some of the roles, "any" (every member) or "none" (no other worker).
//
// If no rule fits, the function's own Access decides. If it has none, "default" does, which is
// "any" or "none". Weft's own functions, whose names begin with "weft." or "weft::", are different:
// only patterns that begin so fit them, and "default" does not concern them.
//
// A policy can only be right or refused. Unknown or repeated fields are errors, and so are a role
// that is not listed, and a rule that decides about no function of the worker.
//
// Thread safety: immutable once made.
// Errors: InvalidArgument, which names the file or text, and the place in it.
#pragma once

#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "absl/status/statusor.h"
#include "weft/security/rights/access.h"

namespace weft {

class AccessPolicy {
 public:
  // `source` names the text in errors.
  static absl::StatusOr<AccessPolicy> parse(std::string_view text, std::string_view source);
  // Also NotFound, Unavailable (it cannot be read), and PermissionDenied (a user other than this
  // one and root could change it).
  static absl::StatusOr<AccessPolicy> read(const std::string& path);

  // Whether a worker may have this role. For errors: `who` names it.
  absl::Status check_role(std::string_view role, std::string_view who) const;
  // Whether each rule decides about one of these functions.
  absl::Status check_rules(const std::vector<std::string_view>& functions) const;
  // `tag`: the rule of the function's registration, if it has one. Its roles must be listed, unless
  // a rule of the policy takes its place.
  absl::StatusOr<AccessRule> rule_for(std::string_view function,
                                      const std::optional<AccessRule>& tag) const;

 private:
  struct Rule {
    std::string functions;
    AccessRule access;
  };

  std::string source_;
  std::vector<std::string> roles_;
  std::vector<Rule> rules_;
  AccessRule default_;
};

}  // namespace weft
