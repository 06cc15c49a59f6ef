#include "weft/base/log.h"

#include <atomic>
#include <chrono>
#include <cstdio>
#include <cstdlib>
#include <memory>
#include <string>

#include "weft/base/mutex.h"

namespace weft {
namespace {

constexpr size_t kMostOfALine = 4096;

bool is_printable(char c) { return c >= ' ' && c <= '~'; }

LogLevel level_from_environment() {
  const char* text = std::getenv("WEFT_LOG");
  const std::string_view name = text == nullptr ? "warning" : text;
  if (name == "info") return LogLevel::kInfo;
  if (name == "error") return LogLevel::kError;
  return LogLevel::kWarning;
}

std::atomic<LogLevel>& level_threshold() {
  static std::atomic<LogLevel> level{level_from_environment()};
  return level;
}

struct SinkHolder {
  Mutex mutex;
  std::shared_ptr<const LogSink> sink ABSL_GUARDED_BY(mutex);
};

SinkHolder& sink_holder() {
  static SinkHolder* holder = new SinkHolder;  // never destroyed: static destructors may log
  return *holder;
}

const char* name(LogLevel level) {
  switch (level) {
    case LogLevel::kInfo:
      return "info";
    case LogLevel::kWarning:
      return "warning";
    case LogLevel::kError:
      return "error";
  }
  return "";
}

}  // namespace

std::string printable(std::string_view text, size_t most) {
  constexpr char kDigits[] = "0123456789abcdef";
  const size_t cut = text.size() > most ? text.size() - most : 0;
  text.remove_suffix(cut);
  std::string shown;
  shown.reserve(text.size());
  for (const char c : text) {
    if (is_printable(c)) {
      shown.push_back(c);
    } else {
      const auto byte = static_cast<unsigned char>(c);
      shown.append({'\\', 'x', kDigits[byte >> 4], kDigits[byte & 15]});
    }
  }
  if (cut > 0) absl::StrAppend(&shown, " [", cut, " more bytes]");
  return shown;
}

void set_log_sink(LogSink sink) {
  SinkHolder& holder = sink_holder();
  MutexLock lock(holder.mutex);
  holder.sink = sink ? std::make_shared<const LogSink>(std::move(sink)) : nullptr;
}

void set_log_level(LogLevel level) { level_threshold().store(level); }

void log_line(LogLevel level, std::string_view text) {
  if (level < level_threshold().load(std::memory_order_relaxed)) return;
  std::shared_ptr<const LogSink> sink;  // called without the lock, so that it may log itself
  {
    SinkHolder& holder = sink_holder();
    MutexLock lock(holder.mutex);
    sink = holder.sink;
  }
  const std::string shown = printable(text, kMostOfALine);
  if (sink != nullptr) {
    (*sink)(level, shown);
    return;
  }
  const std::string line = absl::StrCat("weft ", name(level), ": ", shown, "\n");
  std::fwrite(line.data(), 1, line.size(), stderr);
}

void WarningLimit::warn(std::string_view text) {
  constexpr int64_t kBetween = 1'000'000'000;
  const int64_t now = std::chrono::steady_clock::now().time_since_epoch().count();
  int64_t due = next_.load();
  if (now < due || !next_.compare_exchange_strong(due, now + kBetween)) {
    left_out_.fetch_add(1);
    return;
  }
  const uint64_t lines = left_out_.exchange(0);
  log_warning(absl::string_view(text.data(), text.size()),
              lines == 0 ? "" : absl::StrCat(" (", lines, " such lines were left out)"));
}

}  // namespace weft
