// Starts one process in a process group of its own. It dies with the launcher.
//
// Thread safety: the thread that calls start_process must live as long as the process may. The
// kernel kills the child when the thread that started it exits.
// Blocking: start_process returns when the child has executed the program.
#pragma once

#include <string>
#include <sys/types.h>
#include <vector>

#include "absl/status/statusor.h"
#include "weft/sockets/tcp_port.h"

namespace weft::launch {

struct StartedProcess {
  pid_t pid = -1;
  FileDescriptor out;  // read ends of its standard output and error, non-blocking;
  FileDescriptor err;  // invalid if it shares the launcher's
};

struct StartRequest {
  std::string path;                      // of the program, already looked up
  std::vector<std::string> arguments;    // argv, including the program's name
  std::vector<std::string> environment;  // NAME=VALUE
  bool capture_output = true;
  int input = -1;  // a descriptor that becomes its standard input; -1: /dev/null
};

// The exit code of a shell, and of weft_launch, if a program cannot be started: 127 (NotFound), 126
// (PermissionDenied), or 1.
int exit_code_of(const absl::Status& not_started);

// Returns the file that a shell would execute for `program`.
// Errors: NotFound, PermissionDenied.
absl::StatusOr<std::string> find_program(const std::string& program);

// As a rule the child's standard input is /dev/null, because the processes of a group cannot share
// a terminal's input. Errors: those of exec, as NotFound, PermissionDenied or Unavailable.
absl::StatusOr<StartedProcess> start_process(const StartRequest& request);

}  // namespace weft::launch
