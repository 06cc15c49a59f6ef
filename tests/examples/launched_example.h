// Runs the program of an example as several processes, under weft_launch and, if installed,
// torchrun.
//
// Thread safety: free functions. Blocking: until the processes have exited.
#pragma once

#include <filesystem>
#include <string>

#include "absl/strings/str_cat.h"
#include "weft/tests/support/launched.h"

namespace weft::testing {

inline constexpr const char* kTorchrun = WEFT_SOURCE_DIR "/.deps/oracles/bin/torchrun";
inline constexpr const char* kNoTorchrun = "torchrun is not there: tools/oracles.sh";

inline bool has_torchrun() { return std::filesystem::exists(kTorchrun); }

// Returns the output of all ranks, without rank numbers in front.
inline Outcome launch_example(const std::string& program, int ranks, const std::string& options) {
  return run_command(absl::StrCat(WEFT_BUILD_DIR, "/worker/weft_launch --no-prefix -n ", ranks,
                                  " -- ", program, " ", options, " 2>&1"));
}
inline Outcome torchrun_example(const std::string& program, int ranks, const std::string& options) {
  return run_command(absl::StrCat("OMP_NUM_THREADS=1 ", kTorchrun,
                                  " --no-python --standalone --nproc-per-node ", ranks, " ",
                                  program, " ", options, " 2>&1"));
}

}  // namespace weft::testing
