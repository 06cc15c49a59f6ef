// The program that the tests of weft_launch start. It does what its arguments say, one after
// another:
//
//   `env NAME`      prints NAME=value.
//   `print TEXT`    prints TEXT and an end of line.
//   `complain TEXT` prints it on standard error.
//   `write TEXT`    prints TEXT, in which \r and \n stand for the characters.
//   `pid`           prints "pid P".
//   `descriptors`   prints the open sockets and signal descriptors.
//   `rank R`        goes on only in rank R; all others exit with 0.
//   `not-rank R`    goes on in all ranks except R.
//   `attempt N`     goes on only in attempt N; all others exit with 0.
//   `catch NAME`    from now on "await" takes the signal SIGTERM, SIGINT or SIGHUP.
//   `ignore NAME`   from now on that signal does nothing.
//   `await`         waits for a caught signal and prints "got NAME".
//   `forever`       waits for a signal that ends the process.
//   `spawn`         starts a process of its own that waits for ever.
//   `daemon`        does the same in a session of its own.
//   `error TEXT`    writes TORCHELASTIC_ERROR_FILE as torchrun's processes do.
//   `raise NAME`    kills itself with that signal.
//   `exit CODE`     exits with CODE; without it the exit code is 0.
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <dirent.h>
#include <fcntl.h>
#include <fstream>
#include <iostream>
#include <signal.h>
#include <string>
#include <unistd.h>

namespace {

int signal_of(const std::string& name) {
  for (int signal = 1; signal < 32; ++signal) {
    const char* known = sigabbrev_np(signal);
    if (known != nullptr && name == known) return signal;
  }
  std::cerr << "unknown signal " << name << std::endl;
  std::_Exit(99);
}

bool is_value(const char* name, const std::string& value) {
  const char* held = std::getenv(name);
  return held != nullptr && value == held;
}

std::string unescape(const std::string& text) {
  std::string result;
  for (size_t i = 0; i < text.size(); ++i) {
    if (text[i] == '\\' && i + 1 < text.size()) {
      ++i;
      result.push_back(text[i] == 'r' ? '\r' : '\n');
    } else {
      result.push_back(text[i]);
    }
  }
  return result;
}

void print_descriptors() {
  DIR* folder = opendir("/proc/self/fd");
  std::cout << "descriptors";
  while (const dirent* entry = readdir(folder)) {
    const int fd = std::atoi(entry->d_name);
    if (fd > 2 && fd != dirfd(folder)) {
      char target[256] = {};
      if (readlinkat(dirfd(folder), entry->d_name, target, sizeof(target) - 1) < 0) continue;
      if (std::strstr(target, "socket") != nullptr || std::strstr(target, "signalfd") != nullptr) {
        std::cout << " " << fd << "=" << target;
      }
    }
  }
  std::cout << std::endl;
  closedir(folder);
}

// The new process prints its own pid, as the last thing that it does.
void spawn_waiting_process(bool new_session) {
  if (fork() != 0) {
    return;
  }
  if (new_session) setsid();
  std::cout << "spawned " << getpid() << std::endl;
  while (true) pause();
}

}  // namespace

int main(int argc, char** argv) {
  sigset_t caught;
  sigemptyset(&caught);
  for (int i = 1; i < argc; ++i) {
    const std::string what = argv[i];
    const auto argument = [&] { return std::string(i + 1 < argc ? argv[++i] : ""); };
    if (what == "env") {
      const std::string name = argument();
      const char* value = std::getenv(name.c_str());
      std::cout << name << (value == nullptr ? " is not set" : std::string("=") + value)
                << std::endl;
    } else if (what == "print") {
      std::cout << argument() << std::endl;
    } else if (what == "complain") {
      std::cerr << argument() << std::endl;
    } else if (what == "write") {
      std::cout << unescape(argument()) << std::flush;
    } else if (what == "pid") {
      std::cout << "pid " << getpid() << std::endl;
    } else if (what == "descriptors") {
      print_descriptors();
    } else if (what == "rank") {
      if (!is_value("RANK", argument())) return 0;
    } else if (what == "not-rank") {
      if (is_value("RANK", argument())) return 0;
    } else if (what == "attempt") {
      if (!is_value("TORCHELASTIC_RESTART_COUNT", argument())) return 0;
    } else if (what == "catch") {
      sigaddset(&caught, signal_of(argument()));
      sigprocmask(SIG_BLOCK, &caught, nullptr);
    } else if (what == "ignore") {
      signal(signal_of(argument()), SIG_IGN);
    } else if (what == "await") {
      int signal = 0;
      std::cout << "waiting" << std::endl;
      sigwait(&caught, &signal);
      std::cout << "got " << sigabbrev_np(signal) << std::endl;
    } else if (what == "forever") {
      std::cout << "waiting" << std::endl;
      while (true) pause();
    } else if (what == "spawn" || what == "daemon") {
      spawn_waiting_process(what == "daemon");
    } else if (what == "error") {
      std::ofstream(std::getenv("TORCHELASTIC_ERROR_FILE"))
          << R"({"message": {"message": ")" << argument() << R"("}})";
    } else if (what == "raise") {
      raise(signal_of(argument()));
    } else if (what == "exit") {
      return std::atoi(argument().c_str());
    } else {
      std::cerr << "unknown: " << what << std::endl;
      return 98;
    }
  }
  return 0;
}
