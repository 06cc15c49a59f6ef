// Runs a program's main function and reports an exception to the launcher: the message goes to
// standard error and to the file that TORCHELASTIC_ERROR_FILE names.
//
//   int main(int argc, char** argv) { return weft::run_main(argc, argv, train); }
//
// Thread safety: call it once, from main.
// Errors: an exception of `f` becomes exit code 1. If an exception leaves the function of another
// thread, or a noexcept function, the message is written in the same way before the process aborts.
#pragma once

#include <functional>
#include <string>
#include <string_view>

namespace weft {

int run_main(int argc, char** argv, const std::function<int(int argc, char** argv)>& f);

namespace worker_internal {

// The format that torchrun and weft_launch read: {"message": {"message": ..., "extraInfo": ...}}.
std::string error_file_text(std::string_view message, int64_t unix_seconds);

}  // namespace worker_internal
}  // namespace weft
