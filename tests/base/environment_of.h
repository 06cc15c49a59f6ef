// An environment of a test's own variables, for functions that take an EnvironmentReader.
//
// Thread safety: a free function; its result is a plain value with a copy of the variables.
#pragma once

#include <map>
#include <optional>
#include <string>
#include <utility>

#include "weft/base/environment.h"

namespace weft::testing {

inline EnvironmentReader environment_of(std::map<std::string, std::string> variables) {
  return [variables = std::move(variables)](const char* name) -> std::optional<std::string> {
    const auto found = variables.find(name);
    if (found == variables.end()) return std::nullopt;
    return found->second;
  };
}

}  // namespace weft::testing
