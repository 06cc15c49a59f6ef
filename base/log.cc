#include "weft/base/log.h"

#include <atomic>
#include <cstdio>
#include <cstdlib>
#include <memory>
#include <string>

#include "weft/base/mutex.h"

namespace weft {
namespace {

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
  static SinkHolder* holder = new SinkHolder;  // lines may come from static destructors
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

void set_log_sink(LogSink sink) {
  SinkHolder& holder = sink_holder();
  MutexLock lock(holder.mutex);
  holder.sink = sink ? std::make_shared<const LogSink>(std::move(sink)) : nullptr;
}

void set_log_level(LogLevel level) { level_threshold().store(level); }

void log_line(LogLevel level, std::string_view text) {
  if (level < level_threshold().load(std::memory_order_relaxed)) return;
  std::shared_ptr<const LogSink> sink;
  {
    SinkHolder& holder = sink_holder();
    MutexLock lock(holder.mutex);
    sink = holder.sink;
  }
  if (sink != nullptr) {
    (*sink)(level, text);
    return;
  }
  const std::string line =
      absl::StrCat("weft ", name(level), ": ", absl::string_view(text.data(), text.size()), "\n");
  std::fwrite(line.data(), 1, line.size(), stderr);
}

}  // namespace weft
