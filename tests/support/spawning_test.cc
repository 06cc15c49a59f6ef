#include "weft/tests/support/spawning_test.h"

#include <fcntl.h>
#include <poll.h>
#include <signal.h>
#include <spawn.h>
#include <sys/wait.h>
#include <unistd.h>
#include <utility>

extern char** environ;

namespace weft::testing {
namespace {

void close_end(int& end) {
  if (end >= 0) close(std::exchange(end, -1));
}

void append(int& from, std::string& to) {
  char buffer[4096];
  const ssize_t size = read(from, buffer, sizeof(buffer));
  if (size <= 0) {
    close_end(from);
  } else {
    to.append(buffer, static_cast<size_t>(size));
  }
}

int occurrences(const std::string& text, const std::string& part) {
  int count = 0;
  for (size_t at = text.find(part); at != std::string::npos; at = text.find(part, at + 1)) ++count;
  return count;
}

}  // namespace

void SpawningTest::start_command(const std::vector<std::string>& command) {
  end_command();
  int out[2];
  int err[2];
  ASSERT_EQ(pipe2(out, O_CLOEXEC), 0);
  ASSERT_EQ(pipe2(err, O_CLOEXEC), 0);
  posix_spawn_file_actions_t actions;
  posix_spawn_file_actions_init(&actions);
  posix_spawn_file_actions_adddup2(&actions, out[1], 1);
  posix_spawn_file_actions_adddup2(&actions, err[1], 2);
  std::vector<char*> argv;
  for (const std::string& part : command) argv.push_back(const_cast<char*>(part.c_str()));
  argv.push_back(nullptr);
  const int failed = posix_spawn(&process_, argv[0], &actions, nullptr, argv.data(), environ);
  posix_spawn_file_actions_destroy(&actions);
  close(out[1]);
  close(err[1]);
  out_ = out[0];
  err_ = err[0];
  if (failed != 0) process_ = -1;
  ASSERT_EQ(failed, 0) << command[0];
}

bool SpawningTest::read_some() {
  pollfd ends[] = {{out_, POLLIN, 0}, {err_, POLLIN, 0}};  // poll leaves out negative ones
  if (out_ < 0 && err_ < 0) return false;
  poll(ends, 2, -1);
  if (ends[0].revents != 0) append(out_, output_);
  if (ends[1].revents != 0) append(err_, errors_);
  return true;
}

void SpawningTest::read_until(const std::string& text, int count) {
  while (occurrences(output_, text) < count && read_some()) {
  }
}

int SpawningTest::finish() {
  while (read_some()) {
  }
  const pid_t process = std::exchange(process_, -1);
  int status = 0;
  if (process <= 0 || waitpid(process, &status, 0) != process) {
    ADD_FAILURE() << "no program runs";
    return -1;
  }
  return WIFSIGNALED(status) ? 1000 + WTERMSIG(status) : WEXITSTATUS(status);
}

void SpawningTest::close_output() { close_end(out_); }

void SpawningTest::end_command() {
  close_end(out_);
  close_end(err_);
  if (process_ <= 0) return;
  kill(process_, SIGTERM);
  waitpid(std::exchange(process_, -1), nullptr, 0);
}

}  // namespace weft::testing
