#include "weft/tests/chaos/processes/child.h"

#include <cerrno>
#include <csignal>
#include <cstdlib>
#include <fcntl.h>
#include <sched.h>
#include <sys/mman.h>
#include <sys/prctl.h>
#include <sys/resource.h>
#include <sys/wait.h>
#include <system_error>
#include <unistd.h>

#include "weft/sockets/file_descriptor.h"

namespace weft::chaos {
namespace {

[[noreturn]] void fail(const char* what) {
  throw std::system_error(errno, std::generic_category(), what);
}

int open_input(const std::string& text) {
  if (text.empty()) return ::open("/dev/null", O_RDONLY | O_CLOEXEC);
  const int file = ::memfd_create("chaos_input", MFD_CLOEXEC);
  if (file >= 0 && ::write(file, text.data(), text.size()) == static_cast<ssize_t>(text.size())) {
    ::lseek(file, 0, SEEK_SET);
  }
  return file;
}

// Returns this process's own variables, except those that `added` replaces.
std::vector<std::string> environment_with(const std::vector<std::string>& added) {
  std::vector<std::string> all = added;
  for (char** variable = environ; *variable != nullptr; ++variable) {
    const std::string text = *variable;
    const std::string name = text.substr(0, text.find('=') + 1);
    bool replaced = false;
    for (const std::string& other : added) replaced |= other.compare(0, name.size(), name) == 0;
    if (!replaced) all.push_back(text);
  }
  return all;
}

std::vector<char*> pointers(const std::vector<std::string>& strings) {
  std::vector<char*> result;
  for (const std::string& s : strings) result.push_back(const_cast<char*>(s.c_str()));
  result.push_back(nullptr);
  return result;
}

struct ChildPlan {
  char* const* argv;
  char* const* envp;
  int name_space;
  int in;
  int out;  // -1: that of the caller
  pid_t parent;
};

// Runs in the child, in its parent's memory, until exec: system calls only, no allocation.
[[noreturn]] void become(const ChildPlan& plan) {
  const rlimit no_core{0, 0};
  // A process group of its own: keys of a terminal reach only the controller, which stops its
  // processes.
  bool good = ::setpgid(0, 0) == 0 && ::prctl(PR_SET_PDEATHSIG, SIGKILL) == 0;
  // The parent may have died before prctl took effect.
  if (good && ::getppid() != plan.parent) _exit(127);
  if (plan.name_space >= 0) good = good && ::setns(plan.name_space, CLONE_NEWNET) == 0;
  good = good && ::dup2(plan.in, STDIN_FILENO) >= 0;
  if (plan.out >= 0) {
    good = good && ::dup2(plan.out, STDOUT_FILENO) >= 0 && ::dup2(plan.out, STDERR_FILENO) >= 0;
  }
  if (good) {
    ::setrlimit(RLIMIT_CORE, &no_core);
    sigset_t none;
    ::sigemptyset(&none);
    ::sigprocmask(SIG_SETMASK, &none, nullptr);
    ::execvpe(plan.argv[0], plan.argv, plan.envp);
  }
  _exit(127);
}

// vfork, as in worker/launch/child_process.cc, because this process may have LibTorch's mappings.
[[gnu::noinline]] pid_t start(const ChildPlan& plan) {
  const pid_t pid = ::vfork();
  if (pid == 0) become(plan);
  return pid;
}

}  // namespace

pid_t start_child(const ChildRequest& request) {
  const std::vector<std::string> environment = environment_with(request.environment);
  const std::vector<char*> argv = pointers(request.arguments), envp = pointers(environment);
  const FileDescriptor in(open_input(request.input));
  if (in.get() < 0) fail("cannot open a process's input");
  const FileDescriptor out(
      request.output.empty()
          ? -1
          : ::open(request.output.c_str(), O_WRONLY | O_CREAT | O_APPEND | O_CLOEXEC, 0644));
  if (!request.output.empty() && out.get() < 0) fail(request.output.c_str());
  const pid_t pid =
      start({argv.data(), envp.data(), request.name_space, in.get(), out.get(), ::getpid()});
  if (pid < 0) fail("vfork");
  return pid;
}

int run_child(const ChildRequest& request) {
  const pid_t pid = start_child(request);
  int status = 0;
  while (::waitpid(pid, &status, 0) < 0 && errno == EINTR) {
  }
  return WIFEXITED(status) ? WEXITSTATUS(status) : 128 + WTERMSIG(status);
}

}  // namespace weft::chaos
