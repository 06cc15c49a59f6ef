// Starts one process that dies with the launcher, in a process group of its own.
//
// Thread safety: start_process must be called from a thread that lives as long as the process may:
// the kernel kills the child when the thread that started it ends.
#pragma once

#include <string>
#include <sys/types.h>
#include <vector>

#include "absl/status/statusor.h"
#include "weft/worker/internal/tcp_port.h"

namespace weft::launch {

struct StartedProcess {
  pid_t pid = -1;
  worker_internal::Descriptor out;  // read ends of its standard output and error, non-blocking;
  worker_internal::Descriptor err;  // invalid if it shares the launcher's
};

struct StartRequest {
  std::string path;                      // of the program, already looked up
  std::vector<std::string> arguments;    // argv, its name included
  std::vector<std::string> environment;  // NAME=VALUE
  bool capture_output = true;
};

// The file that a shell would execute for `program`. Errors: NotFound, PermissionDenied.
absl::StatusOr<std::string> find_program(const std::string& program);

// Standard input is /dev/null: a group that shares a terminal cannot share its keys. Errors: those
// of exec, as NotFound, PermissionDenied or Unavailable.
absl::StatusOr<StartedProcess> start_process(const StartRequest& request);

}  // namespace weft::launch
