// Runs a shell command and keeps what it printed, for tests of programs.
//
// Thread safety: free functions.
// Blocking: until the command has closed its output and exited.
#pragma once

#include <cstdio>
#include <cstdlib>
#include <functional>
#include <string>
#include <sys/wait.h>

namespace weft::testing {

inline constexpr const char* kWeftLaunch = WEFT_BUILD_DIR "/worker/weft_launch";

// Environment variables of workers, as the parameter of a test: through shared memory, or over
// gRPC.
inline constexpr const char* kOverGrpc = "WEFT_SAME_HOST=off";
template <class Info>
std::string transport_name(const Info& info) {
  return *info.param == '\0' ? "SameHost" : "Grpc";
}

struct Outcome {
  int code = -1;       // exit code; 1000 + N: killed by signal N; -1: not started
  std::string output;  // of all ranks and the launcher; standard error too if the command says 2>&1
};

// Calls `on_line` on each line as soon as it comes.
inline Outcome run_command(const std::string& command,
                           const std::function<void(const std::string&)>& on_line = {}) {
  Outcome outcome;
  FILE* pipe = popen(command.c_str(), "r");
  if (pipe == nullptr) return outcome;
  char* line = nullptr;
  size_t room = 0;
  for (ssize_t size; (size = getline(&line, &room, pipe)) > 0;) {
    const std::string text(line, static_cast<size_t>(size));
    outcome.output += text;
    if (on_line) on_line(text);
  }
  free(line);
  const int status = pclose(pipe);
  outcome.code = WIFEXITED(status) ? WEXITSTATUS(status) : 1000 + WTERMSIG(status);
  return outcome;
}

}  // namespace weft::testing
