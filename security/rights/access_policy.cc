#include "weft/security/rights/access_policy.h"

#include <algorithm>
#include <set>
#include <utility>

#include <nlohmann/json.hpp>

#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "weft/base/log.h"
#include "weft/base/status.h"
#include "weft/security/key_file.h"

namespace weft {
namespace {

using Json = nlohmann::json;

constexpr size_t kMostPolicy = size_t{1} << 20;
constexpr size_t kMostRoles = 256;

// Whether a function, or a pattern for functions, is of Weft itself.
bool is_own(std::string_view name) {
  if (name.starts_with("weft::HostedModule<")) return false;  // it is a user's module
  return name.starts_with("weft.") || name.starts_with("weft::");
}

// Whether `name` is `pattern`, in which each * stands for any characters.
bool fits(std::string_view pattern, std::string_view name) {
  if (is_own(name) && !is_own(pattern)) return false;
  // If the rest does not fit, the newest * takes one more character.
  size_t at = 0, star = std::string_view::npos, taken = 0;
  size_t i = 0;
  while (i < name.size()) {
    if (at < pattern.size() && pattern[at] == '*') {
      star = at++;
      taken = i;
    } else if (at < pattern.size() && pattern[at] == name[i]) {
      ++at;
      ++i;
    } else if (star != std::string_view::npos) {
      at = star + 1;
      i = ++taken;
    } else {
      return false;
    }
  }
  while (at < pattern.size() && pattern[at] == '*') ++at;
  return at == pattern.size();
}

// Reads one policy. Each error names the place in it.
class PolicyReader {
 public:
  explicit PolicyReader(std::string_view source) : source_(source) {}

  absl::StatusOr<Json> parse(std::string_view text) const {
    if (text.size() > kMostPolicy) {
      return wrong("", absl::StrCat("it has more than ", kMostPolicy, " bytes"));
    }
    // nlohmann::json keeps the last of several fields with one name, and would hide the others.
    std::vector<std::set<std::string>> fields;
    std::string repeated;
    bool deep = false;
    const auto look = [&](int depth, Json::parse_event_t event, Json& parsed) {
      deep = deep || depth > 4;
      if (event == Json::parse_event_t::object_start) fields.emplace_back();
      if (event == Json::parse_event_t::object_end) fields.pop_back();
      if (event == Json::parse_event_t::key &&
          !fields.back().insert(parsed.get<std::string>()).second) {
        repeated = parsed.get<std::string>();
      }
      return true;
    };
    Json root;
    try {
      root = Json::parse(text.begin(), text.end(), look);
    } catch (const Json::exception& bad) {
      return wrong("", printable(bad.what(), 200));
    }
    if (!repeated.empty()) {
      return wrong("", absl::StrCat("field '", printable(repeated), "' is there twice"));
    }
    if (deep) return wrong("", "it is nested too deeply");
    return root;
  }

  // Whether `object` has these fields and no others.
  absl::Status check_fields(const Json& object, const std::string& place,
                            const std::set<std::string>& names) const {
    if (!object.is_object()) return wrong(place, "is not an object");
    for (const auto& [name, value] : object.items()) {
      if (!names.contains(name)) {
        return wrong(place, absl::StrCat("has an unknown field '", printable(name, 100), "'"));
      }
    }
    for (const std::string& name : names) {
      if (!object.contains(name)) return wrong(place, absl::StrCat("has no field '", name, "'"));
    }
    return absl::OkStatus();
  }

  absl::StatusOr<std::vector<std::string>> texts(const Json& list, const std::string& place) const {
    std::vector<std::string> texts;
    if (!list.is_array()) return wrong(place, "is not a list of roles");
    if (list.empty()) return wrong(place, "is an empty list");
    if (list.size() > kMostRoles) {
      return wrong(place, absl::StrCat("has more than ", kMostRoles, " roles"));
    }
    for (const Json& each : list) {
      if (!each.is_string()) return wrong(place, "has a role that is no text");
      const auto& role = each.get_ref<const std::string&>();
      if (const absl::Status good = weft::check_role(role); !good.ok()) {
        return wrong(place, absl::StrCat("has ", good.message()));
      }
      if (std::find(texts.begin(), texts.end(), role) != texts.end()) {
        return wrong(place, absl::StrCat("has role '", printable(role), "' twice"));
      }
      texts.push_back(role);
    }
    return texts;
  }

  // "any" or "none".
  absl::StatusOr<AccessRule> word(const Json& value, const std::string& place) const {
    AccessRule rule;
    if (value == "none") {
      rule.local_only = true;
    } else if (value != "any") {
      return wrong(place, R"(is not "any" or "none")");
    }
    return rule;
  }

  absl::StatusOr<AccessRule> access(const Json& value, const std::string& place,
                                    const std::vector<std::string>& known) const {
    if (!value.is_array()) {
      const absl::StatusOr<AccessRule> rule = word(value, place);
      return rule.ok() ? rule : wrong(place, R"(is not a list of roles, "any" or "none")");
    }
    AccessRule rule;
    WEFT_ASSIGN_OR_RETURN(rule.roles, texts(value, place));
    for (const std::string& role : rule.roles) {
      if (std::find(known.begin(), known.end(), role) == known.end()) {
        return wrong(place,
                     absl::StrCat("names role '", printable(role), "', which is not in \"roles\""));
      }
    }
    return rule;
  }

  absl::Status wrong(std::string_view place, std::string_view what) const {
    return absl::InvalidArgumentError(absl::StrCat("policy ", printable(source_), ": ",
                                                   absl_view(place), place.empty() ? "" : " ",
                                                   absl_view(what)));
  }

 private:
  const std::string_view source_;
};

}  // namespace

absl::StatusOr<AccessPolicy> AccessPolicy::parse(std::string_view text, std::string_view source) {
  const PolicyReader reader(source);
  WEFT_ASSIGN_OR_RETURN(const Json root, reader.parse(text));
  WEFT_RETURN_IF_ERROR(reader.check_fields(root, "the file", {"roles", "rules", "default"}));
  AccessPolicy policy;
  policy.source_ = std::string(source);
  WEFT_ASSIGN_OR_RETURN(policy.roles_, reader.texts(root["roles"], "\"roles\""));
  WEFT_ASSIGN_OR_RETURN(policy.default_, reader.word(root["default"], "\"default\""));
  if (!root["rules"].is_array()) return reader.wrong("\"rules\"", "is not a list");
  for (const Json& each : root["rules"]) {
    const std::string place = absl::StrCat("rule ", policy.rules_.size() + 1);
    WEFT_RETURN_IF_ERROR(reader.check_fields(each, place, {"functions", "roles"}));
    const Json& functions = each["functions"];
    if (!functions.is_string() || functions.get_ref<const std::string&>().empty()) {
      return reader.wrong(place, "has no pattern for functions");
    }
    Rule rule;
    rule.functions = functions.get<std::string>();
    WEFT_ASSIGN_OR_RETURN(rule.access,
                          reader.access(each["roles"], place + ": \"roles\"", policy.roles_));
    policy.rules_.push_back(std::move(rule));
  }
  return policy;
}

absl::StatusOr<AccessPolicy> AccessPolicy::read(const std::string& path) {
  WEFT_ASSIGN_OR_RETURN(
      const SecretBytes text,
      security_internal::read_file(path, kMostPolicy, security_internal::Readers::kEverybody));
  return parse(text.text(), path);
}

absl::Status AccessPolicy::check_role(std::string_view role, std::string_view who) const {
  if (std::find(roles_.begin(), roles_.end(), role) != roles_.end()) return absl::OkStatus();
  return absl::InvalidArgumentError(
      absl::StrCat("policy ", source_, ": ", absl_view(who), " has role '", printable(role),
                   "', which is not in \"roles\" (", absl::StrJoin(roles_, ", "), ")"));
}

absl::Status AccessPolicy::check_rules(const std::vector<std::string_view>& functions) const {
  std::vector<bool> decides(rules_.size());
  for (const std::string_view name : functions) {
    const auto rule = std::find_if(rules_.begin(), rules_.end(),
                                   [name](const Rule& each) { return fits(each.functions, name); });
    if (rule != rules_.end()) decides[static_cast<size_t>(rule - rules_.begin())] = true;
  }
  const auto useless = std::find(decides.begin(), decides.end(), false);
  if (useless == decides.end()) return absl::OkStatus();
  const auto i = static_cast<size_t>(useless - decides.begin());
  const std::string& pattern = rules_[i].functions;
  const bool fits_one = std::any_of(functions.begin(), functions.end(),
                                    [&](std::string_view name) { return fits(pattern, name); });
  return absl::InvalidArgumentError(
      absl::StrCat("policy ", source_, ": rule ", i + 1, ": '", printable(pattern), "' ",
                   fits_one ? "is of no use: earlier rules decide about all functions that it fits"
                            : "fits no function of this worker"));
}

absl::StatusOr<AccessRule> AccessPolicy::rule_for(std::string_view function,
                                                  const std::optional<AccessRule>& tag) const {
  for (const Rule& rule : rules_) {
    if (fits(rule.functions, function)) return rule.access;
  }
  if (!tag.has_value()) return is_own(function) ? AccessRule() : default_;
  for (const std::string& role : tag->roles) {
    WEFT_RETURN_IF_ERROR(
        check_role(role, absl::StrCat("the Access of '", absl_view(function), "'")));
  }
  return *tag;
}

}  // namespace weft
