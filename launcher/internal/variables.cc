#include "weft/launcher/internal/variables.h"

#include "absl/strings/ascii.h"
#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"

namespace weft::launcher_internal {

std::optional<std::string> Variables::text(const char* name) const {
  std::optional<std::string> value = read_(name);
  if (value && value->empty()) value.reset();
  return value;
}

std::string Variables::required_text(const char* name) {
  std::optional<std::string> value = text(name);
  if (!value) add_problem(absl::StrCat(name, " is not set"));
  return value.value_or("");
}

uint32_t Variables::required_number(const char* name, uint32_t low, uint32_t high) {
  const std::optional<std::string> value = text(name);
  if (value) return parse(name, *value, low, high);
  add_problem(absl::StrCat(name, " is not set"));
  return low;
}

uint32_t Variables::number(const char* name, uint32_t low, uint32_t high, uint32_t fallback) {
  const std::optional<std::string> value = text(name);
  return value ? parse(name, *value, low, high) : fallback;
}

bool Variables::flag(const char* name) {
  const std::optional<std::string> value = text(name);
  if (!value) return false;
  const std::string lower = absl::AsciiStrToLower(*value);
  if (lower == "true" || lower == "1") return true;
  if (lower != "false" && lower != "0") {
    add_problem(absl::StrCat(name, "='", *value, "' is neither True nor False"));
  }
  return false;
}

uint32_t Variables::parse(const char* name, const std::string& value, uint32_t low, uint32_t high) {
  uint32_t number = 0;
  if (absl::SimpleAtoi(value, &number) && number >= low && number <= high) return number;
  add_problem(absl::StrCat(name, "='", value, "' is not a number from ", low, " to ", high));
  return low;
}

}  // namespace weft::launcher_internal
