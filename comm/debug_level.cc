#include "weft/comm/debug_level.h"

#include <cstdlib>

#include <c10/util/Exception.h>

#include "absl/strings/ascii.h"
#include "absl/strings/str_cat.h"

namespace weft {

DebugLevel parse_debug_level(const std::string& text) {
  const std::string level = absl::AsciiStrToUpper(text);
  if (level == "OFF") return DebugLevel::kOff;
  if (level == "INFO") return DebugLevel::kInfo;
  if (level == "DETAIL") return DebugLevel::kDetail;
  C10_THROW_ERROR(ValueError,
                  absl::StrCat("TORCH_DISTRIBUTED_DEBUG is OFF, INFO or DETAIL, not '", text, "'"));
}

DebugLevel debug_level_of_environment() {
  const char* const text = std::getenv("TORCH_DISTRIBUTED_DEBUG");
  return text == nullptr || *text == '\0' ? DebugLevel::kOff : parse_debug_level(text);
}

}  // namespace weft
