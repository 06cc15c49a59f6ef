#include "weft/security/rights/access.h"

#include <algorithm>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "absl/strings/str_split.h"
#include "weft/base/log.h"
#include "weft/security/certificate_name.h"

namespace weft {
namespace {

constexpr size_t kMostRole = 127;

}  // namespace

AccessRule::AccessRule(const Access& tag) : local_only(tag.local) {
  roles = absl::StrSplit(tag.roles, ',', absl::SkipEmpty());
  std::sort(roles.begin(), roles.end());
}

absl::Status check_role(std::string_view role) {
  if (is_certificate_segment(role)) return absl::OkStatus();
  return absl::InvalidArgumentError(absl::StrCat(
      "role '", printable(role, kMostRole), "' of ", role.size(), " characters: a role is 1 to ",
      kMostRole, " letters, digits, '-', '.' and '_', and not '.' or '..'"));
}

bool AccessRule::allows(std::string_view role) const {
  if (local_only) return false;
  return roles.empty() || std::find(roles.begin(), roles.end(), role) != roles.end();
}

std::string AccessRule::to_string() const {
  if (local_only) return "no other worker";
  if (roles.empty()) return "every member";
  return absl::StrCat(roles.size() == 1 ? "role " : "roles ", absl::StrJoin(roles, ", "));
}

}  // namespace weft
