#include "weft/security/security_mode.h"

#include <optional>

#include "absl/strings/str_cat.h"
#include "weft/base/status.h"

namespace weft {
namespace {

constexpr char kSecurity[] = "WEFT_SECURITY";
constexpr char kPlainCollectives[] = "WEFT_PLAIN_COLLECTIVES";

absl::Status wrong(const char* name, const std::string& value, std::string_view right) {
  return absl::InvalidArgumentError(
      absl::StrCat("environment variable ", name, "='", value, "' is not ", absl_view(right)));
}

}  // namespace

std::string_view to_string(SecurityMode mode) {
  switch (mode) {
    case SecurityMode::kAuto:
      return "auto";
    case SecurityMode::kMtls:
      return "mtls";
    case SecurityMode::kNone:
      return "none";
  }
  return "";
}

absl::StatusOr<SecurityMode> find_security_mode(const EnvironmentReader& read) {
  const std::string text = read(kSecurity).value_or("auto");
  for (const SecurityMode mode : {SecurityMode::kAuto, SecurityMode::kMtls, SecurityMode::kNone}) {
    if (text == to_string(mode)) return mode;
  }
  return wrong(kSecurity, text, "auto, mtls or none");
}

absl::StatusOr<PlainTraffic> find_plain_traffic(const EnvironmentReader& read) {
  WEFT_ASSIGN_OR_RETURN(const SecurityMode mode, find_security_mode(read));
  const std::optional<std::string> text = read(kPlainCollectives);
  if (text.has_value() && *text != "allow") return wrong(kPlainCollectives, *text, "allow");
  if (text.has_value() || mode == SecurityMode::kNone) return PlainTraffic::kAllow;
  return mode == SecurityMode::kMtls ? PlainTraffic::kRefuse : PlainTraffic::kWarn;
}

}  // namespace weft
