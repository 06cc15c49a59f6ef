// Lines for a person who watches a worker, on standard error: "weft <level>: <text>".
//
// Thread safety: all functions may be called from any thread; one call writes one whole line.
// Text of other processes may be part of it: log_line writes what `printable` makes of it.
#pragma once

#include <cstddef>
#include <functional>
#include <string>
#include <string_view>

#include "absl/strings/str_cat.h"

namespace weft {

// The text of somebody who is not trusted, fit for a terminal and for one line of a log: bytes that
// are no printable ASCII become "\xNN", and what exceeds `most` bytes is cut off and counted.
// Printable text that is short enough stays as it is.
inline constexpr size_t kMostForeignText = 1024;
std::string printable(std::string_view text, size_t most = kMostForeignText);

enum class LogLevel { kInfo, kWarning, kError };

// Where lines go; tests catch them by putting a sink of their own in its place. Null restores
// standard error.
using LogSink = std::function<void(LogLevel, std::string_view line)>;
void set_log_sink(LogSink sink);
// Lines below `level` are dropped; WEFT_LOG=info|warning|error sets it at start (default warning).
void set_log_level(LogLevel level);

// At most 4 KiB of `text`.
void log_line(LogLevel level, std::string_view text);

template <class... Pieces>
void log_info(const Pieces&... pieces) {
  log_line(LogLevel::kInfo, absl::StrCat(pieces...));
}
template <class... Pieces>
void log_warning(const Pieces&... pieces) {
  log_line(LogLevel::kWarning, absl::StrCat(pieces...));
}
template <class... Pieces>
void log_error(const Pieces&... pieces) {
  log_line(LogLevel::kError, absl::StrCat(pieces...));
}

}  // namespace weft
