#include "weft/worker/launch/child_process.h"

#include <errno.h>
#include <fcntl.h>
#include <signal.h>
#include <stdlib.h>
#include <string.h>
#include <sys/prctl.h>
#include <sys/stat.h>
#include <sys/wait.h>
#include <unistd.h>
#include <utility>

#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_split.h"
#include "weft/base/status.h"

namespace weft::launch {
namespace {

absl::Status error_for(const std::string& what, int error) {
  const std::string text = absl::StrCat(what, ": ", strerror(error));
  if (error == ENOENT || error == ENOTDIR) return absl::NotFoundError(text);
  if (error == EACCES || error == EPERM || error == ENOEXEC) {
    return absl::PermissionDeniedError(text);
  }
  return absl::UnavailableError(text);
}

struct Pipe {
  FileDescriptor read;
  FileDescriptor write;
};

absl::StatusOr<Pipe> open_pipe() {
  int ends[2];
  if (pipe2(ends, O_CLOEXEC) != 0) return error_for("pipe", errno);
  Pipe result{FileDescriptor(ends[0]), FileDescriptor(ends[1])};
  fcntl(ends[0], F_SETFL, O_NONBLOCK);
  return result;
}

// Everything that the child needs, prepared before it exists.
struct ChildPlan {
  const char* path;
  char* const* argv;
  char* const* envp;
  int in;
  int out;  // the launcher's own
  int err;
  pid_t launcher;
};

// Runs in the child, in the launcher's memory, until exec. So it makes system calls only, does not
// allocate, and does not return. If a step fails, `error` gets its errno.
[[noreturn]] void become(const ChildPlan& plan, volatile int* error) {
  bool good = setpgid(0, 0) == 0 && prctl(PR_SET_PDEATHSIG, SIGKILL) == 0;
  // The launcher may have died before prctl took effect.
  if (good && getppid() != plan.launcher) _exit(127);
  good = good && dup2(plan.in, STDIN_FILENO) >= 0;
  if (plan.out >= 0) good = good && dup2(plan.out, STDOUT_FILENO) >= 0;
  if (plan.err >= 0) good = good && dup2(plan.err, STDERR_FILENO) >= 0;
  if (good) {
    // The launcher blocks the signals that it reads from a descriptor, and ignores SIGPIPE.
    struct sigaction ignored = {};
    ignored.sa_handler = SIG_DFL;
    sigaction(SIGPIPE, &ignored, nullptr);
    sigset_t none;
    sigemptyset(&none);
    sigprocmask(SIG_SETMASK, &none, nullptr);
    execve(plan.path, plan.argv, plan.envp);
  }
  *error = errno;
  _exit(127);
}

// Uses vfork, not fork, because the launcher has the store's threads and LibTorch's mappings. vfork
// copies no page table and runs no fork handler. The caller waits until exec, so the child may use
// its memory. posix_spawn cannot set the death signal.
[[gnu::noinline]] pid_t start(const ChildPlan& plan, volatile int* error) {
  const pid_t pid = vfork();
  if (pid == 0) become(plan, error);
  return pid;
}

std::vector<char*> pointers(const std::vector<std::string>& strings) {
  std::vector<char*> result;
  for (const std::string& s : strings) result.push_back(const_cast<char*>(s.c_str()));
  result.push_back(nullptr);
  return result;
}

}  // namespace

int exit_code_of(const absl::Status& not_started) {
  if (absl::IsNotFound(not_started)) return 127;
  return absl::IsPermissionDenied(not_started) ? 126 : 1;
}

absl::StatusOr<std::string> find_program(const std::string& program) {
  std::vector<std::string> candidates;
  if (absl::StrContains(program, '/')) {
    candidates.push_back(program);
  } else {
    const char* path = getenv("PATH");
    for (const auto& folder : absl::StrSplit(path == nullptr ? "/usr/bin:/bin" : path, ':')) {
      candidates.push_back(absl::StrCat(folder.empty() ? "." : folder, "/", program));
    }
  }
  int error = ENOENT;
  for (const std::string& candidate : candidates) {
    struct stat file;
    if (stat(candidate.c_str(), &file) != 0) continue;
    if (S_ISREG(file.st_mode) && access(candidate.c_str(), X_OK) == 0) return candidate;
    error = EACCES;
  }
  return error_for(program, error);
}

absl::StatusOr<StartedProcess> start_process(const StartRequest& request) {
  const std::vector<char*> argv = pointers(request.arguments);
  const std::vector<char*> envp = pointers(request.environment);
  const FileDescriptor in(open("/dev/null", O_RDONLY | O_CLOEXEC));
  Pipe out;
  Pipe err;
  if (request.capture_output) {
    WEFT_ASSIGN_OR_RETURN(out, open_pipe());
    WEFT_ASSIGN_OR_RETURN(err, open_pipe());
  }
  ChildPlan plan;
  plan.path = request.path.c_str();
  plan.argv = argv.data();
  plan.envp = envp.data();
  plan.in = request.input >= 0 ? request.input : in.get();
  plan.out = out.write.get();
  plan.err = err.write.get();
  plan.launcher = getpid();
  volatile int error = 0;
  StartedProcess result;
  result.pid = start(plan, &error);
  if (result.pid < 0) return error_for("cannot start a process", errno);
  if (error != 0) {
    waitpid(result.pid, nullptr, 0);
    return error_for(request.path, error);
  }
  result.out = std::move(out.read);
  result.err = std::move(err.read);
  return result;
}

}  // namespace weft::launch
