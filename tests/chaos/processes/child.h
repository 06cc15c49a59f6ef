// Starts processes in a network namespace. They die with this process.
//
// Thread safety: call it from a thread that lives as long as the processes may. The kernel kills
// them when the thread that started them exits.
// Blocking: run_child, until the process has exited.
// Errors: std::system_error if no process can be made. If a program cannot be started, the exit
// code is 127.
#pragma once

#include <string>
#include <sys/types.h>
#include <vector>

namespace weft::chaos {

struct ChildRequest {
  std::vector<std::string> arguments;  // the program's path, or its name on PATH, and its arguments
  std::vector<std::string> environment;  // NAME=VALUE, added to this process's own
  int name_space = -1;                   // descriptor of a network namespace; -1: the caller's
  std::string output;  // a file to which both outputs are appended; empty: the caller's
  std::string input;   // the text of its standard input
};

pid_t start_child(const ChildRequest& request);
// Returns the exit code, or 128 + N if signal N killed it.
int run_child(const ChildRequest& request);

}  // namespace weft::chaos
