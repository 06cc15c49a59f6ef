#include "weft/worker/run_main.h"

#include <cstdlib>
#include <ctime>
#include <exception>
#include <fstream>
#include <iostream>

#include <c10/util/Exception.h>
#include <nlohmann/json.hpp>

#include "absl/strings/str_cat.h"
#include "weft/async/future.h"

namespace weft {
namespace {

// Must not throw, because it runs while the process is stopping.
void report_failure(std::string_view message) noexcept {
  try {
    std::cerr << message << std::endl;
    const char* path = std::getenv("TORCHELASTIC_ERROR_FILE");
    if (path == nullptr || *path == '\0') return;
    std::ofstream(path) << worker_internal::error_file_text(message, std::time(nullptr));
  } catch (...) {
  }
}

std::string describe_current_exception(std::string_view what) {
  const absl::string_view begin(what.data(), what.size());
  try {
    throw;
  } catch (const c10::Error& error) {
    return absl::StrCat(begin, error.what_without_backtrace());  // a launcher shows it as one line
  } catch (...) {
    return absl::StrCat(begin, to_text(async_internal::status_of_current_exception()));
  }
}

[[noreturn]] void on_terminate() {
  if (std::current_exception() == nullptr) {
    report_failure("terminated without an exception");
    std::abort();
  }
  try {
    throw;
  } catch (...) {
    report_failure(describe_current_exception("uncaught exception: "));
  }
  std::abort();
}

}  // namespace

std::string worker_internal::error_file_text(std::string_view message, int64_t unix_seconds) {
  // There is no "py_callstack": torchrun would show it in place of the message.
  const nlohmann::json text = {{"message",
                                {{"message", std::string(message)},
                                 {"extraInfo", {{"timestamp", std::to_string(unix_seconds)}}}}}};
  // The file is valid JSON, whatever bytes the message holds.
  return text.dump(-1, ' ', false, nlohmann::json::error_handler_t::replace);
}

int run_main(int argc, char** argv, const std::function<int(int, char**)>& f) {
  std::set_terminate(on_terminate);
  try {
    return f(argc, argv);
  } catch (...) {
    report_failure(describe_current_exception("failed: "));
    return EXIT_FAILURE;
  }
}

}  // namespace weft
