// Keeps the lines that Weft logs, instead of standard error, while it exists.
//
// Thread safety: all methods may be called from any thread. Only one may exist at a time.
#pragma once

#include <string>
#include <string_view>
#include <vector>

#include "weft/base/log.h"
#include "weft/base/mutex.h"

namespace weft::testing {

class CapturedLog {
 public:
  CapturedLog() {
    set_log_sink([this](LogLevel, std::string_view line) {
      MutexLock lock(mutex_);
      lines_.emplace_back(line);
    });
  }
  ~CapturedLog() { set_log_sink(nullptr); }
  CapturedLog(const CapturedLog&) = delete;
  CapturedLog& operator=(const CapturedLog&) = delete;

  // The lines so far that contain `text`; all, if it is empty.
  std::vector<std::string> lines_with(std::string_view text) const ABSL_LOCKS_EXCLUDED(mutex_) {
    MutexLock lock(mutex_);
    std::vector<std::string> found;
    for (const std::string& line : lines_) {
      if (line.find(text) != line.npos) found.push_back(line);
    }
    return found;
  }

 private:
  mutable Mutex mutex_;
  std::vector<std::string> lines_ ABSL_GUARDED_BY(mutex_);
};

}  // namespace weft::testing
