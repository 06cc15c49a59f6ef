#include "weft/base/environment.h"

#include <cstdlib>

namespace weft {

std::optional<std::string> read_process_environment(const char* name) {
  const char* value = std::getenv(name);
  return value == nullptr ? std::nullopt : std::optional<std::string>(value);
}

}  // namespace weft
