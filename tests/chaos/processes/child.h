// Starts processes in a network namespace; they die with this one.
//
// Thread safety: call from a thread that lives as long as the processes may: the kernel kills them
// when the thread that started them ends.
// Blocking: run_child, until the process has ended.
// Errors: std::system_error where no process can be made; a program that cannot be started ends
// with exit code 127.
#pragma once

#include <string>
#include <sys/types.h>
#include <vector>

namespace weft::chaos {

struct ChildRequest {
  std::vector<std::string> arguments;  // the program's path, or its name on PATH, and what follows
  std::vector<std::string> environment;  // NAME=VALUE, beside this process's own
  int name_space = -1;                   // descriptor of a network namespace; -1: the caller's
  std::string output;  // a file for both outputs, appended to; empty: the caller's
  std::string input;   // what it reads on its standard input
};

pid_t start_child(const ChildRequest& request);
// Its exit code; 128 + N: ended by signal N.
int run_child(const ChildRequest& request);

}  // namespace weft::chaos
