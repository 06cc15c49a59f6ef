// Writes log lines for a person to standard error: "weft <level>: <text>".
//
// Thread safety: all functions may be called from any thread. One call writes one whole line.
// A line may contain text of other processes, so log_line passes all text through `printable`.
#pragma once

#include <atomic>
#include <cstddef>
#include <cstdint>
#include <functional>
#include <string>
#include <string_view>

#include "absl/strings/str_cat.h"

namespace weft {

// Makes text of an untrusted process safe for a terminal and for one line of a log. Each byte that
// is not printable ASCII becomes "\xNN". Bytes of `text` beyond the first `most` are cut off; the
// result ends with their number. Shorter printable text stays unchanged.
inline constexpr size_t kMostForeignText = 1024;
std::string printable(std::string_view text, size_t most = kMostForeignText);

enum class LogLevel { kInfo, kWarning, kError };

// Receives the lines instead of standard error. A test installs one to read them. A null sink
// restores standard error.
using LogSink = std::function<void(LogLevel, std::string_view line)>;
void set_log_sink(LogSink sink);
// Lines below `level` are dropped. At start, WEFT_LOG=info|warning|error sets it (default warning).
void set_log_level(LogLevel level);

// Writes at most the first 4 KiB of `text`.
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

// Writes at most one warning in a second, for events that a peer can cause as often as it likes. A
// warning ends with the number of those that were left out before it.
class WarningLimit {
 public:
  void warn(std::string_view text);

 private:
  std::atomic<int64_t> next_{INT64_MIN};  // when the next one may come: steady clock, ns
  std::atomic<uint64_t> left_out_{0};
};

}  // namespace weft
