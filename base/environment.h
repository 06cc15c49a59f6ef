// Reads variables of the process environment. What reads them takes a reader, so that tests give it
// variables of their own.
//
// Thread safety: no thread may change the process environment during a read.
#pragma once

#include <functional>
#include <optional>
#include <string>

namespace weft {

// nullopt: the variable is not set.
using EnvironmentReader = std::function<std::optional<std::string>(const char* name)>;

// Reads a variable of this process with getenv.
std::optional<std::string> read_process_environment(const char* name);

}  // namespace weft
