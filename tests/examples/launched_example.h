// The program of an example, run as several processes under weft_launch or, if installed, torchrun.
//
// Thread safety: all methods may be called from any thread.
// Blocking: until the processes have exited.
#pragma once

#include <filesystem>
#include <functional>
#include <signal.h>
#include <string>
#include <vector>

#include <gtest/gtest.h>

#include "absl/strings/match.h"
#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_split.h"
#include "weft/tests/support/launched.h"

namespace weft::testing {

class LaunchedExample {
 public:
  using OnLine = std::function<void(const std::string&)>;

  // Runs WEFT_BUILD_DIR/examples/NAME/NAME.
  explicit LaunchedExample(const std::string& name)
      : program_(absl::StrCat(WEFT_BUILD_DIR, "/examples/", name, "/", name)) {}
  const std::string& program() const { return program_; }

  // Runs a shell command. The outcome has what it printed, standard error included. `on_line` gets
  // each line as soon as it comes.
  static Outcome command(const std::string& command, const OnLine& on_line = {}) {
    return run_command(command + " 2>&1", on_line);
  }
  // Runs the ranks. Their lines have no rank numbers in front.
  Outcome run(int ranks, const std::string& options = "") const {
    return command(
        absl::StrCat(kWeftLaunch, " --no-prefix -n ", ranks, " -- ", program_, " ", options));
  }
  // Runs `greeting` in each rank's shell, which then becomes the program. `launch` has further
  // options of weft_launch. So a test learns the pid of a rank, which it may kill.
  Outcome run_greeting(const std::string& greeting, const std::string& launch,
                       const std::string& options, const OnLine& on_line) const {
    return command(absl::StrCat(kWeftLaunch, " ", launch, " -- sh -c '", greeting, "; exec ",
                                program_, " ", options, "'"),
                   on_line);
  }

  // Runs the ranks. The launcher gets SIGTERM as soon as a line holds `cue`, and passes it on.
  Outcome run_and_stop(int ranks, const std::string& options, const std::string& cue) const {
    return run_and_ask("echo launcher is $PPID", "launcher is ", absl::StrCat("-n ", ranks),
                       options, cue);
  }
  // Only one rank gets SIGTERM, just after a call of `on_stop`. The launcher reports every process
  // whose exit code is not 0.
  Outcome run_and_stop_rank(int rank, int ranks, const std::string& options, const std::string& cue,
                            const std::function<void()>& on_stop = {}) const {
    return run_and_ask("echo pid of $RANK is $$", absl::StrCat("pid of ", rank, " is "),
                       absl::StrCat("--on-failure continue -n ", ranks), options, cue, on_stop);
  }
  // How many processes the launcher has reported with this exit code.
  static size_t count_exits(const Outcome& outcome, int code) {
    const std::vector<std::string> parts =
        absl::StrSplit(outcome.output, absl::StrCat("ended with exit code ", code));
    return parts.size() - 1;
  }

  static const char* torchrun() { return WEFT_SOURCE_DIR "/.deps/oracles/bin/torchrun"; }
  static bool has_torchrun() { return std::filesystem::exists(torchrun()); }
  Outcome run_torchrun(int ranks, const std::string& options = "") const {
    return command(absl::StrCat("OMP_NUM_THREADS=1 ", torchrun(),
                                " --no-python --standalone --nproc-per-node ", ranks, " ", program_,
                                " ", options));
  }

 private:
  // Sends SIGTERM to the process whose number follows `said` in the greeting.
  Outcome run_and_ask(const std::string& greeting, const std::string& said,
                      const std::string& launch, const std::string& options, const std::string& cue,
                      const std::function<void()>& on_stop = {}) const {
    pid_t process = -1;
    bool sent = false;
    const Outcome outcome = run_greeting(greeting, launch, options, [&](const std::string& line) {
      if (const size_t at = line.find(said); at != std::string::npos) {
        (void)absl::SimpleAtoi(line.substr(at + said.size()), &process);
      }
      // kill(-1) would end every process of the user.
      if (process <= 0 || !absl::StrContains(line, cue)) return;
      if (on_stop) on_stop();
      sent = kill(process, SIGTERM) == 0;
      process = -1;
    });
    EXPECT_TRUE(sent) << "no SIGTERM at '" << cue << "': " << outcome.output;
    return outcome;
  }

  const std::string program_;
};

inline constexpr const char* kNoTorchrun = "torchrun is not there: tools/oracles.sh";

}  // namespace weft::testing
