// Writes a file as a whole: under its name there is either the earlier content or the new one.
//
// Thread safety: a free function.
// Errors: AlreadyExists, Unavailable (it cannot be written); the text names the file.
#pragma once

#include <string>
#include <string_view>
#include <sys/types.h>

#include "absl/status/status.h"

namespace weft::security_internal {

enum class Existing { kReplace, kRefuse };

absl::Status write_whole(const std::string& path, std::string_view content, mode_t mode,
                         Existing existing);

}  // namespace weft::security_internal
