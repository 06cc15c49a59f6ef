// Runs a command and keeps what it printed: for tests of programs.
//
// Thread safety: free functions.
#pragma once

#include <array>
#include <cstdio>
#include <string>
#include <sys/wait.h>

namespace weft::testing {

struct Outcome {
  int code = -1;       // 1000 + N: ended by signal N
  std::string output;  // of all ranks and the launcher; standard error if the command says 2>&1
};

inline Outcome run_command(const std::string& command) {
  Outcome outcome;
  FILE* pipe = popen(command.c_str(), "r");
  if (pipe == nullptr) return outcome;
  std::array<char, 4096> buffer;
  while (size_t count = fread(buffer.data(), 1, buffer.size(), pipe)) {
    outcome.output.append(buffer.data(), count);
  }
  const int status = pclose(pipe);
  outcome.code = WIFEXITED(status) ? WEXITSTATUS(status) : 1000 + WTERMSIG(status);
  return outcome;
}

}  // namespace weft::testing
